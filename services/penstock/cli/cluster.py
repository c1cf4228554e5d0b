"""`penstock cluster`: look at a cluster and move its replicas, by way of the metadata in etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.clusterview import is_behind, lacks, lag_text, show_elections
from penstock.cli.options import AsJson
from penstock.cli.terminal import CommandFailed, Commands, print_json, print_table, run

if TYPE_CHECKING:
    from penstock.broker.http.models import OwnReplica
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
    "brokers": ("id", "kafka", "replication", "rack", "leads", "replicas", "drained"),
    "partitions": ("topic", "partition", "leader", "epoch", "replicas", "wanted", "in_sync", "lag", "reason"),
}


@asynccontextmanager
async def _directory(endpoints: str, prefix: str) -> AsyncIterator[ClusterDirectory]:
    from penstock.cluster.directory import ClusterDirectory
    from penstock.cluster.etcd import EtcdMetadata, endpoints_of

    try:
        store = EtcdMetadata(endpoints_of(endpoints), prefix)
    except ValueError as error:
        raise CommandFailed(str(error)) from None
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
    """Show brokers, who leads and follows each partition and how far behind, and the last elections.

    Exits with 1 when a partition has no leader, replicas out of sync, or fewer replicas than its topic wants.

    Example: penstock cluster status --cluster http://127.0.0.1:2379
    """
    found = run(_status(cluster, prefix))
    if as_json:
        print_json(found)
    else:
        for table, columns in _TABLES.items():
            print_table(table, columns, [[row[column] for column in columns] for row in found[table]])
        show_elections(found["elections"])
    behind = sum(map(is_behind, found["partitions"]))
    lacking = sum(map(lacks, found["partitions"]))
    troubles = []
    if behind:
        troubles.append(f"{behind} partitions are without a leader or have replicas out of sync")
    if lacking:
        troubles.append(
            f"{lacking} partitions have fewer replicas than wanted; `penstock cluster rebalance` adds them"
        )
    if troubles:
        raise CommandFailed("; ".join(troubles))


async def _status(cluster: str, prefix: str) -> dict[str, Any]:
    from penstock.broker.http import whole

    async with _directory(cluster, prefix) as directory:
        partitions: list[dict[str, Any]] = [
            {
                "topic": topic.name,
                "partition": index,
                "leader": info.leader,
                "epoch": info.leader_epoch,
                "replicas": list(info.replicas),
                "wanted": topic.replication,
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
                "drained": info.broker_id in directory.drained,
            }
            for info in sorted(directory.brokers.values(), key=lambda info: info.broker_id)
        ]
        asked = await whole.ask_all(info.http_address for info in directory.brokers.values())
        answers = [answer for answer in asked if answer is not None]
        lags = whole.lags(answers)
        for each in partitions:
            each["lag"] = lag_text(lags.get((each["topic"], each["partition"]), {}))
        elections = [election.model_dump() for election in whole.elections(answers)]
        return {"brokers": brokers, "partitions": partitions, "elections": elections}


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

    With more or fewer replicas than before, and as many as all other partitions of the topic have: then this
    is the number that the topic wants, and that `rebalance` fills up to.

    Example: penstock cluster reassign orders 0 2,3
    """
    from dataclasses import replace

    async def work() -> None:
        async with _directory(cluster, prefix) as directory:
            key, state = _find(directory, topic, partition)
            ids = {str(broker): broker for broker in directory.brokers}
            named = [part.strip() for part in replicas.split(",")]
            wanted = tuple(ids[name] for name in named if name in ids)
            if len(wanted) != len(named) or len(set(wanted)) != len(wanted):
                raise CommandFailed(f"{replicas!r}: name brokers of {sorted(directory.brokers)}, each once")
            if len(wanted) != len(state.replicas):
                await _want(directory, topic, partition, len(wanted))
            await _apply(directory, {key: replace(state, replicas=wanted, reason="reassigned")}, wait)

    run(work())


async def _want(directory: ClusterDirectory, topic: str, partition: int, replicas: int) -> None:
    """An operator changes the number of a partition's replicas: the topic's, once all have that many."""
    from penstock.wire.errors import KafkaError

    found = directory.get(topic)
    others = {len(info.replicas) for index, info in enumerate(found.partitions) if index != partition}
    if found.replication == replicas or not others <= {replicas}:
        return
    try:
        await directory.want(topic, replicas)
    except KafkaError as error:
        raise CommandFailed(str(error)) from None
    typer.echo(f"{topic} wants {replicas} replicas of each partition from now on")


@app.command()
def drain(
    broker: Broker,
    undo: Annotated[bool, typer.Option("--undo", help="Let it have replicas again; moves none.")] = False,
    cluster: Etcd = ETCD,
    prefix: Prefix = PREFIX,
    wait: Wait = 300.0,
) -> None:
    """Move every leader and replica off a broker, for maintenance or for good, while clients go on.

    It gets no new ones until it starts again, or until --undo. A partition that is on every other broker has
    one replica less from then on; `penstock cluster rebalance` fills it up once there is a broker for it.

    Example: penstock cluster drain 3
    """
    run(_undrain(broker, cluster, prefix) if undo else _drain(broker, cluster, prefix, wait))


async def _undrain(broker: int, cluster: str, prefix: str) -> None:
    async with _directory(cluster, prefix) as directory:
        if not await directory.mark_drained(broker, False):
            raise CommandFailed(f"broker {broker} is not drained")
        typer.echo(f"broker {broker} may have replicas again; `penstock cluster rebalance` gives it some")


async def _drain(broker: int, cluster: str, prefix: str, wait: float) -> None:
    from penstock.cluster.plans import drained

    async with _directory(cluster, prefix) as directory:
        holds = any(broker in state.replicas for state in directory.states.values())
        if not holds and broker not in directory.brokers:
            raise CommandFailed(f"there is no broker {broker}, and no replica on it")
        # The mark first: else a new topic could go there meanwhile. One that just did is planned for, too.
        marked = await directory.mark_drained(broker, True)
        await asyncio.gather(*(directory.led(name) for name in directory.by_name))
        try:
            plan = drained(directory.states, directory.racks(), broker)
        except ValueError as error:
            if marked:
                await directory.mark_drained(broker, False)
            raise CommandFailed(str(error)) from None
        wanted = directory.wanted()
        fewer = sum(len(state.replicas) < wanted.get(key, 0) for key, state in plan.items())
        if fewer:
            typer.echo(f"{fewer} partitions have fewer replicas than wanted then: there is no other broker")
        await _apply(directory, plan, wait)


@app.command()
def rebalance(cluster: Etcd = ETCD, prefix: Prefix = PREFIX, wait: Wait = 300.0) -> None:
    """Spread replicas and leaders evenly over the brokers that are there and not drained.

    Partitions that have fewer replicas than their topic wants, since a broker was drained, get new ones.

    Example: penstock cluster rebalance
    """

    async def work() -> None:
        async with _directory(cluster, prefix) as directory:
            await _apply(directory, _rebalanced(directory), wait)

    run(work())


@app.command()
def add_partitions(
    topic: Topic,
    count: Annotated[int, typer.Argument(min=1, help="How many it has then.")],
    cluster: Etcd = ETCD,
    prefix: Prefix = PREFIX,
) -> None:
    """Give a topic more partitions, spread over brokers and racks; keys may then go elsewhere.

    Example: penstock cluster add-partitions orders 16
    """
    from penstock.wire.errors import KafkaError

    async def work() -> None:
        async with _directory(cluster, prefix) as directory:
            try:
                grown = await directory.add_partitions(topic, count)
            except KafkaError as error:
                raise CommandFailed(str(error)) from None
            waiting = [index for index, each in enumerate(grown.partitions) if each.leader < 0]
            typer.echo(f"{topic} has {len(grown.partitions)} partitions")
            if waiting:
                raise CommandFailed(f"partitions {waiting} have no leader yet; `penstock cluster status`")

    run(work())


@app.command()
def elect(
    topic: Topic,
    partition: Partition,
    broker: Annotated[int | None, typer.Argument(help="Which; without: the one that has most.")] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="I know that records acknowledged to producers may be lost.")
    ] = False,
    cluster: Etcd = ETCD,
    prefix: Prefix = PREFIX,
    wait: Wait = 30.0,
) -> None:
    """Let a replica lead an offline partition although it was not in sync. THIS LOSES RECORDS.

    Only for a partition whose in-sync replicas will never come back: what the chosen broker doesn't have is
    given up for ever, also if one of them comes back after all.

    Example: penstock cluster elect orders 0 --unclean
    """
    run(_elect(topic, partition, broker, unclean, cluster, prefix, wait))


async def _elect(
    topic: str, partition: int, broker: int | None, unclean: bool, cluster: str, prefix: str, wait: float
) -> None:
    from penstock.broker.http import whole
    from penstock.cluster.partitions import declare

    async with _directory(cluster, prefix) as directory:
        key, state = _find(directory, topic, partition)
        alive = sorted(directory.brokers)
        asked = await whole.ask_all(directory.brokers[number].http_address for number in alive)
        there: dict[int, OwnReplica] = {}
        for number, answer in zip(alive, asked, strict=True):
            for each in answer.partitions if answer is not None else ():
                if (each.topic, each.partition) == (topic, partition) and each.own is not None:
                    there[number] = each.own
        for number, own in there.items():
            if state.has(number, own.storage):
                raise CommandFailed(f"broker {number} is there and in sync: no record needs to be lost, wait")
        if not there:
            raise CommandFailed(
                f"no living broker has any of {topic}-{partition}; its replicas: {state.replicas}"
            )
        columns = ("broker", "log_start", "log_end", "high_watermark", "last_epoch")
        rows = [[number, *(getattr(own, name) for name in columns[1:])] for number, own in there.items()]
        print_table(f"{topic}-{partition}: what is left of it", columns, rows)
        chosen = broker if broker is not None else max(there, key=lambda n: _length(there[n]))
        if chosen not in there or chosen not in state.brokers:
            raise CommandFailed(f"broker {chosen} has no replica; these have: {sorted(there)}")
        gone = ", ".join(str(member.broker) for member in state.in_sync) or "nobody"
        typer.secho(
            f"in sync were: {gone}. Whatever they acknowledged after offset {there[chosen].log_end} is "
            f"LOST for ever if broker {chosen} leads.",
            fg="red",
            err=True,
        )
        if not unclean:
            raise CommandFailed("nothing was changed; say --unclean if that is what you want")
        await _apply(directory, {key: declare(state, chosen)}, 0)
        deadline = asyncio.get_running_loop().time() + wait
        while wait and directory.states[key].leader != chosen:
            if asyncio.get_running_loop().time() > deadline:
                raise CommandFailed(f"broker {chosen} doesn't lead yet; look at its log")
            await asyncio.sleep(0.1)
        typer.echo(f"broker {chosen} leads {topic}-{partition}")


def _rebalanced(directory: ClusterDirectory) -> Mapping[PartitionKey, PartitionState]:
    from penstock.cluster.plans import rebalanced

    return rebalanced(directory.states, directory.racks(), directory.wanted())


def _length(own: OwnReplica) -> tuple[int, int]:
    return own.last_epoch, own.log_end


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
