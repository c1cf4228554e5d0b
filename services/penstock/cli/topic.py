"""`penstock topic`: make topics, look at them, change and delete them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import BROKER, AsJson, BrokerAddress
from penstock.cli.terminal import fail, print_json, print_table, run

if TYPE_CHECKING:
    from penstock.cli.kafka import Cluster

app = typer.Typer(no_args_is_help=True, help="Make topics, look at them, change and delete them.")

Name = Annotated[str, typer.Argument(help="The topic's name.")]
Configs = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", metavar="NAME=VALUE", help="A topic config; may be given several times."),
]

_TOPIC_RESOURCE = 2
_SET, _UNSET = 0, 1
_FROM_DEFAULTS = 5


def _pairs(configs: list[str] | None) -> dict[str, str]:
    for config in configs or []:
        if "=" not in config:
            fail(f"{config!r} is not NAME=VALUE")
    return dict(config.split("=", 1) for config in configs or [])


@app.command()
def create(
    name: Name,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", show_default="the broker's", help="How many.")
    ] = -1,
    replication: Annotated[int, typer.Option(show_default="the broker's", help="Replicas of each.")] = -1,
    on: Annotated[
        str,
        typer.Option(
            metavar="ID,ID,...",
            show_default="spread evenly",
            help="Brokers that hold every partition; the first leads.",
        ),
    ] = "",
    config: Configs = None,
    broker: BrokerAddress = BROKER,
) -> None:
    """Make a topic.

    Example: penstock topic create clicks --partitions 8 -c retention.ms=3600000 -c durability=disk
    """
    brokers = _brokers(on)
    if brokers and replication not in (-1, len(brokers)):
        fail(f"--on names {len(brokers)} brokers, --replication asks for {replication}")
    if brokers and partitions < 1:
        fail("--on takes --partitions too: how many there are is then not the broker's to say")
    layout = run(_create(broker, name, partitions, replication, _pairs(config), brokers))
    typer.echo(f"created {name} with {layout} partition{'s' if layout != 1 else ''}")


def _brokers(on: str) -> list[int]:
    try:
        return [int(number) for number in on.split(",")] if on else []
    except ValueError:
        fail(f"--on {on}: not broker ids separated by commas, as in 1,2")


async def _create(
    broker: str, name: str, partitions: int, replication: int, configs: dict[str, str], brokers: list[int]
) -> int:
    from penstock.cli.kafka import Cluster

    async with Cluster(broker) as cluster:
        return await create_topic(cluster, name, partitions, replication, configs, brokers)


async def create_topic(
    cluster: Cluster,
    name: str,
    partitions: int,
    replication: int,
    configs: dict[str, str],
    brokers: Sequence[int] = (),
) -> int:
    """How many partitions it got. With `brokers`, those hold every partition and the first leads it."""
    from kio.schema.create_topics.v7.request import (
        CreatableReplicaAssignment,
        CreatableTopic,
        CreatableTopicConfig,
        CreateTopicsRequest,
    )
    from kio.schema.types import BrokerId, TopicName
    from kio.static.primitive import i16, i32

    from penstock.cli.kafka import check

    request = CreateTopicsRequest(
        topics=(
            CreatableTopic(
                name=TopicName(name),
                num_partitions=i32(-1 if brokers else partitions),
                replication_factor=i16(-1 if brokers else replication),
                assignments=tuple(
                    CreatableReplicaAssignment(
                        partition_index=i32(partition), broker_ids=tuple(map(BrokerId, brokers))
                    )
                    for partition in range(partitions if brokers else 0)
                ),
                configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in configs.items()),
            ),
        )
    )
    (result,) = (await cluster.ask(request)).topics
    check(result.error_code, result.error_message, f"topic {name}")
    return int(result.num_partitions)


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Topics of the broker's own too.")] = False,
    as_json: AsJson = False,
    broker: BrokerAddress = BROKER,
) -> None:
    """List the topics, with how many records each holds.

    Example: penstock topic list --json
    """
    rows = run(_list(broker, internal))
    if as_json:
        print_json(rows)
    else:
        columns = ("topic", "partitions", "replicas", "records")
        print_table("", columns, [[row[column] for column in columns] for row in rows])


async def _list(broker: str, internal: bool) -> list[dict[str, Any]]:
    from penstock.cli.kafka import EARLIEST, LATEST, Cluster

    async with Cluster(broker) as cluster:
        topics = [topic for topic in await cluster.topics() if internal or not topic.internal]
        starts, ends = await cluster.offsets(topics, EARLIEST), await cluster.offsets(topics, LATEST)
    return [
        {
            "topic": topic.name,
            "partitions": len(topic.partitions),
            "replicas": len(topic.partitions[0].replicas),
            "internal": topic.internal,
            "records": sum(
                ends[topic.name, place.partition] - starts[topic.name, place.partition]
                for place in topic.partitions
            ),
        }
        for topic in topics
    ]


@app.command()
def describe(
    name: Name,
    everything: Annotated[bool, typer.Option("--all", help="Configs at their defaults too.")] = False,
    as_json: AsJson = False,
    broker: BrokerAddress = BROKER,
) -> None:
    """Show a topic's partitions, their offsets and leaders, and its configs.

    Example: penstock topic describe clicks --all
    """
    topic = run(_describe(broker, name, everything))
    if as_json:
        print_json(topic)
        return
    columns = ("partition", "leader", "epoch", "replicas", "in sync", "start", "end")
    rows = [
        (
            row["partition"],
            row["leader"],
            row["leader_epoch"],
            ",".join(map(str, row["replicas"])),
            ",".join(map(str, row["in_sync"])),
            row["start"],
            row["end"],
        )
        for row in topic["partitions"]
    ]
    print_table(f"{name}  {topic['topic_id']}", columns, rows)
    if topic["configs"]:
        typer.echo()
        rows_of_configs = [(row["name"], row["value"], row["from"]) for row in topic["configs"]]
        print_table("", ("config", "value", "from"), rows_of_configs)


async def _describe(broker: str, name: str, everything: bool) -> dict[str, Any]:
    from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
    from kio.static.primitive import i8

    from penstock.cli.kafka import EARLIEST, LATEST, Cluster, check

    async with Cluster(broker) as cluster:
        (topic,) = await cluster.topics([name])
        starts, ends = await cluster.offsets([topic], EARLIEST), await cluster.offsets([topic], LATEST)
        resource = DescribeConfigsResource(
            resource_type=i8(_TOPIC_RESOURCE), resource_name=name, configuration_keys=None
        )
        (found,) = (await cluster.ask(DescribeConfigsRequest(resources=(resource,)))).results
        check(found.error_code, found.error_message, f"topic {name}")
    return {
        "topic": name,
        "topic_id": topic.topic_id,
        "partitions": [
            {**place._asdict(), "start": starts[name, place.partition], "end": ends[name, place.partition]}
            for place in topic.partitions
        ],
        "configs": [
            {
                "name": config.name,
                "value": config.value,
                "from": "default" if config.config_source == _FROM_DEFAULTS else "topic",
            }
            for config in sorted(found.configs, key=lambda config: config.name)
            if everything or config.config_source != _FROM_DEFAULTS
        ],
    }


@app.command()
def alter(
    name: Name,
    config: Configs = None,
    unset: Annotated[
        list[str] | None, typer.Option("--unset", metavar="NAME", help="Put a config back to its default.")
    ] = None,
    partitions: Annotated[int | None, typer.Option("--partitions", "-p", help="Grow to this many.")] = None,
    broker: BrokerAddress = BROKER,
) -> None:
    """Change a topic's configs, or give it more partitions.

    Example: penstock topic alter clicks -c retention.bytes=1073741824 --unset retention.ms --partitions 16
    """
    pairs = _pairs(config)
    if not pairs and not unset and partitions is None:
        fail("nothing to change: give --config, --unset or --partitions")
    run(_alter(broker, name, pairs, unset or [], partitions))
    typer.echo(f"altered {name}")


async def _alter(
    broker: str, name: str, configs: dict[str, str], unset: list[str], partitions: int | None
) -> None:
    from kio.schema.create_partitions.v3.request import CreatePartitionsRequest, CreatePartitionsTopic
    from kio.schema.incremental_alter_configs.v1.request import (
        AlterableConfig,
        AlterConfigsResource,
        IncrementalAlterConfigsRequest,
    )
    from kio.schema.types import TopicName
    from kio.static.primitive import i8, i32

    from penstock.cli.kafka import Cluster, check

    wanted: list[tuple[str, int, str | None]] = [(key, _SET, value) for key, value in configs.items()]
    wanted += [(key, _UNSET, None) for key in unset]
    changes = [AlterableConfig(name=key, config_operation=i8(how), value=value) for key, how, value in wanted]
    async with Cluster(broker) as cluster:
        await cluster.topics([name])
        if changes:
            resource = AlterConfigsResource(
                resource_type=i8(_TOPIC_RESOURCE), resource_name=name, configs=tuple(changes)
            )
            request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
            (altered,) = (await cluster.ask(request)).responses
            check(altered.error_code, altered.error_message, f"topic {name}")
        if partitions is not None:
            larger = CreatePartitionsTopic(name=TopicName(name), count=i32(partitions), assignments=None)
            grow = CreatePartitionsRequest(topics=(larger,), timeout=_a_minute(), validate_only=False)
            (grown,) = (await cluster.ask(grow)).results
            check(grown.error_code, grown.error_message, f"topic {name}")


def _a_minute() -> Any:
    from datetime import timedelta

    from kio.static.primitive import i32Timedelta

    return i32Timedelta.parse(timedelta(minutes=1))


@app.command()
def delete(
    names: Annotated[list[str], typer.Argument(help="The topics' names.")],
    broker: BrokerAddress = BROKER,
) -> None:
    """Delete topics with all their records. There is no way back.

    Example: penstock topic delete clicks old-clicks
    """
    run(_delete(broker, names))
    typer.echo(f"deleted {', '.join(names)}")


async def _delete(broker: str, names: list[str]) -> None:
    from kio.schema.delete_topics.v6.request import DeleteTopicsRequest, DeleteTopicState
    from kio.schema.types import TopicName

    from penstock.cli.kafka import Cluster, check

    async with Cluster(broker) as cluster:
        await cluster.topics(names)
        states = tuple(DeleteTopicState(name=TopicName(name), topic_id=None) for name in names)
        answer = await cluster.ask(DeleteTopicsRequest(topics=states, timeout=_a_minute()))
        for result in answer.responses:
            check(result.error_code, result.error_message, f"topic {result.name}")
