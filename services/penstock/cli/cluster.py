"""`penstock cluster`: look at a cluster and move its replicas, by way of the metadata in etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import AsJson
from penstock.cli.terminal import CommandFailed, Commands, print_json, print_table, run

if TYPE_CHECKING:
    from penstock.cluster.directory import ClusterDirectory
    from penstock.cluster.partitions import PartitionKey, PartitionState

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Brokers, leaders and replicas of a cluster.")

Etcd = Annotated[str, typer.Option("--cluster", envvar="PENSTOCK_CLUSTER", help="etcd endpoints.")]
Prefix = Annotated[str, typer.Option(envvar="PENSTOCK_CLUSTER_PREFIX", help="Where in etcd its keys are.")]
Wait = Annotated[float, typer.Option(min=0, help="Seconds to wait until it is done; 0: don't.")]
Topic = Annotated[str, typer.Argument(help="A topic.")]
Partition = Annotated[int, typer.Argument(min=0, help="One of its partitions.")]
Broker = Annotated[int, typer.Argument(help="A broker's id.")]
ETCD = "http://127.0.0.1:2379"
PREFIX = "/penstock"
_TABLES: Mapping[str, tuple[str, ...]] = {
    "brokers": ("id", "kafka", "replication", "rack", "leads", "replicas"),
    "partitions": ("topic", "partition", "leader", "epoch", "replicas", "in_sync", "reason"),
}


@asynccontextmanager
async def _directory(endpoints: str, prefix: str) -> AsyncIterator[ClusterDirectory]:
    from penstock.cluster.directory import ClusterDirectory
    from penstock.cluster.etcd import EtcdMetadata

    store = EtcdMetadata([endpoint.strip() for endpoint in endpoints.split(",")], prefix)
    directory = ClusterDirectory(store, -1, {})
    try:
        await asyncio.wait_for(directory.load(), 5)
        yield directory
    except TimeoutError:
        raise CommandFailed(f"no etcd answers at {endpoints}; name it with --cluster") from None
    finally:
        await directory.close()
        await store.close()


@app.command()
def status(cluster: Etcd = ETCD, prefix: Prefix = PREFIX, as_json: AsJson = False) -> None:
    """Show brokers, and who leads and follows each partition.

    Exits with 1 when a partition has no leader or too few replicas in sync.

    Example: penstock cluster status --cluster http://127.0.0.1:2379
    """
    found = run(_status(cluster, prefix))
    if as_json:
        print_json(found)
    else:
        for table, columns in _TABLES.items():
            print_table(table, columns, [[row[column] for column in columns] for row in found[table]])
    behind = [p for p in found["partitions"] if p["leader"] < 0 or len(p["in_sync"]) < len(p["replicas"])]
    if behind:
        raise CommandFailed(f"{len(behind)} partitions are without a leader or have replicas out of sync")


async def _status(cluster: str, prefix: str) -> dict[str, Any]:
    async with _directory(cluster, prefix) as directory:
        partitions: list[dict[str, Any]] = [
            {
                "topic": topic.name,
                "partition": index,
                "leader": info.leader,
                "epoch": info.leader_epoch,
                "replicas": list(info.replicas),
                "in_sync": list(info.in_sync),
                "reason": state.reason
                if (state := directory.states.get((topic.topic_id.bytes, index)))
                else "",
            }
            for topic in sorted(directory.by_name.values(), key=lambda topic: topic.name)
            for index, info in enumerate(topic.partitions)
        ]
        brokers = [
            {
                "id": info.broker_id,
                "kafka": f"{info.host}:{info.port}",
                "replication": f"{info.replication_host}:{info.replication_port}",
                "rack": info.rack,
                "leads": sum(p["leader"] == info.broker_id for p in partitions),
                "replicas": sum(info.broker_id in p["replicas"] for p in partitions),
            }
            for info in sorted(directory.brokers.values(), key=lambda info: info.broker_id)
        ]
        return {"brokers": brokers, "partitions": partitions}


@app.command()
def move_leader(
    topic: Topic,
    partition: Partition,
    broker: Broker,
    cluster: Etcd = ETCD,
    prefix: Prefix = PREFIX,
    wait: Wait = 30.0,
) -> None:
    """Let another replica lead a partition, from now on.

    Example: penstock cluster move-leader orders 0 2
    """
    from penstock.cluster.plans import lead_from

    async def work() -> None:
        async with _directory(cluster, prefix) as directory:
            key, state = _find(directory, topic, partition)
            try:
                changed = lead_from(state, broker)
            except ValueError as error:
                raise CommandFailed(str(error)) from None
            await _apply(directory, {key: changed}, wait)

    run(work())


@app.command()
def reassign(
    topic: Topic,
    partition: Partition,
    replicas: Annotated[str, typer.Argument(help="Brokers, the preferred leader first, like 2,3.")],
    cluster: Etcd = ETCD,
    prefix: Prefix = PREFIX,
    wait: Wait = 60.0,
) -> None:
    """Put a partition's replicas on other brokers, while it is served.

    Example: penstock cluster reassign orders 0 2,3
    """
    from dataclasses import replace

    async def work() -> None:
        async with _directory(cluster, prefix) as directory:
            key, state = _find(directory, topic, partition)
            wanted = tuple(int(part) for part in replicas.split(",") if part.strip().isdigit())
            unknown = set(wanted) - directory.brokers.keys()
            if not wanted or unknown or len(set(wanted)) != len(wanted):
                raise CommandFailed(f"{replicas!r}: name brokers of {sorted(directory.brokers)}, each once")
            await _apply(directory, {key: replace(state, replicas=wanted, reason="reassigned")}, wait)

    run(work())


@app.command()
def drain(broker: Broker, cluster: Etcd = ETCD, prefix: Prefix = PREFIX, wait: Wait = 300.0) -> None:
    """Move every leader and replica off a broker, for maintenance. Clients notice nothing.

    Example: penstock cluster drain 3
    """
    from penstock.cluster.plans import drained

    async def work() -> None:
        async with _directory(cluster, prefix) as directory:
            try:
                plan = drained(directory.states, directory.racks(), broker)
            except ValueError as error:
                raise CommandFailed(str(error)) from None
            await _apply(directory, plan, wait)

    run(work())


@app.command()
def rebalance(cluster: Etcd = ETCD, prefix: Prefix = PREFIX, wait: Wait = 300.0) -> None:
    """Spread replicas and leaders evenly over the brokers that are there.

    Example: penstock cluster rebalance
    """
    from penstock.cluster.plans import rebalanced

    async def work() -> None:
        async with _directory(cluster, prefix) as directory:
            await _apply(directory, rebalanced(directory.states, directory.racks()), wait)

    run(work())


def _find(directory: ClusterDirectory, topic: str, partition: int) -> tuple[PartitionKey, PartitionState]:
    found = directory.by_name.get(topic)
    key = (found.topic_id.bytes, partition) if found is not None else None
    state = directory.states.get(key) if key is not None else None
    if key is None or state is None:
        raise CommandFailed(f"there is no partition {topic}-{partition}, or nobody has led it yet")
    return key, state


async def _apply(
    directory: ClusterDirectory, plan: Mapping[PartitionKey, PartitionState], wait: float
) -> None:
    """Swap the plan in, then watch the leaders carry it out."""
    from penstock.cluster import partitions
    from penstock.cluster.metadata import Change

    for key, changed in plan.items():
        path = partitions.path_of(key)
        if not await directory.swap([Change(path, partitions.encode(changed), changed.revision)]):
            raise CommandFailed("the cluster changed meanwhile; look at it and try again")
    typer.echo(f"{len(plan)} partitions to move")

    def left() -> int:
        return sum(not _is_done(directory.states[key], wanted) for key, wanted in plan.items())

    deadline = asyncio.get_running_loop().time() + wait
    while wait and left():
        if asyncio.get_running_loop().time() > deadline:
            raise CommandFailed(f"{left()} partitions are still on their way; the brokers go on with it")
        await asyncio.sleep(0.1)
    if wait:
        typer.echo("done")


def _is_done(state: PartitionState, wanted: PartitionState) -> bool:
    in_sync = {member.broker for member in state.in_sync}
    return state.leader == wanted.replicas[0] and in_sync == set(wanted.replicas)
