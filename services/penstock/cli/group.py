"""`penstock group`: consumer groups, how far behind they are, and where they go on from."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import BROKER, AsJson, BrokerAddress
from penstock.cli.terminal import fail, print_json, print_table, run

if TYPE_CHECKING:
    from penstock.cli.kafka import Cluster, TopicLayout, TopicPartition

app = typer.Typer(no_args_is_help=True, help="Consumer groups: how far behind, and where they go on from.")

Group = Annotated[str, typer.Argument(help="The group's id.")]

_NO_OFFSET = -1


@app.command("list")
def list_groups(as_json: AsJson = False, broker: BrokerAddress = BROKER) -> None:
    """List the consumer groups.

    Example: penstock group list --json
    """
    rows = run(_list(broker))
    if as_json:
        print_json(rows)
    else:
        print_table("", ("group", "state", "protocol"), [tuple(row.values()) for row in rows])


async def _list(broker: str) -> list[dict[str, str]]:
    from kio.schema.list_groups.v4.request import ListGroupsRequest

    from penstock.cli.kafka import Cluster, check

    rows = []
    async with Cluster(broker) as cluster:
        for node in await cluster.brokers():
            answer = await cluster.ask(ListGroupsRequest(), node)
            check(answer.error_code, None, f"broker {node}")
            rows += [
                {"group": str(group.group_id), "state": group.group_state, "protocol": group.protocol_type}
                for group in answer.groups
            ]
    return sorted(rows, key=lambda row: row["group"])


@app.command()
def describe(group: Group, as_json: AsJson = False, broker: BrokerAddress = BROKER) -> None:
    """Show a group's members, what each has, and the lag of every partition.

    Example: penstock group describe billing
    """
    found = run(_describe(broker, group))
    if as_json:
        print_json(found)
        return
    rows = [tuple(row.values()) for row in found["offsets"]]
    title = f"{group}  {found['state']}, {len(found['members'])} members, lag {found['lag']:,}"
    print_table(title, ("topic", "partition", "committed", "end", "lag", "member"), rows)
    if found["members"]:
        typer.echo()
        members = [(row["member_id"], row["client_id"], row["host"]) for row in found["members"]]
        print_table("", ("member", "client", "host"), members)


async def _describe(broker: str, group: str) -> dict[str, Any]:
    from penstock.broker.http.assignment import read_assignment
    from penstock.cli.kafka import LATEST, Cluster

    async with Cluster(broker) as cluster:
        described = await _find(cluster, group)
        committed = await _committed(cluster, group)
        topics = await cluster.topics({topic for topic, _ in committed}) if committed else []
        ends = await cluster.offsets(topics, LATEST)
    owners = {
        (topic, partition): member.member_id
        for member in described.members
        for topic, partitions in read_assignment(member.member_assignment).items()
        for partition in partitions
    }
    offsets = [
        {
            "topic": topic,
            "partition": partition,
            "committed": offset,
            "end": ends[topic, partition],
            "lag": max(0, ends[topic, partition] - offset),
            "member": owners.get((topic, partition)),
        }
        for (topic, partition), offset in sorted(committed.items())
    ]
    return {
        "group": group,
        "state": described.group_state,
        "lag": sum(row["lag"] for row in offsets),
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "host": member.client_host,
            }
            for member in described.members
        ],
        "offsets": offsets,
    }


@app.command()
def reset(
    group: Group,
    to: Annotated[
        str,
        typer.Option("--to", metavar="WHERE", help="earliest, latest, an offset, or a time (ISO 8601)."),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Only these; if none, all it has."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    as_json: AsJson = False,
    broker: BrokerAddress = BROKER,
) -> None:
    """Set where a group goes on from. Its members must be stopped first.

    Offsets outside of a partition's log are moved to its nearest end. Times without a zone are UTC.

    Example: penstock group reset billing --to 2026-01-31T08:00 --topic clicks
    """
    rows = run(_reset(broker, group, to, topic, dry_run))
    if as_json:
        print_json(rows)
    else:
        title = "nothing changed (dry run)" if dry_run else f"reset {group}"
        print_table(title, ("topic", "partition", "was", "is"), [tuple(row.values()) for row in rows])


async def _reset(
    broker: str, group: str, to: str, names: list[str] | None, dry_run: bool
) -> list[dict[str, Any]]:
    from penstock.cli.kafka import Cluster

    async with Cluster(broker) as cluster:
        described = await _find(cluster, group, may_be_new=bool(names))
        if described is not None and described.members:
            fail(
                f"group {group} has {len(described.members)} active members ({described.group_state}): "
                "stop them, then try again"
            )
        committed = await _committed(cluster, group)
        wanted = names or sorted({topic for topic, _ in committed})
        if not wanted:
            fail(f"group {group} has no committed offsets; name the topics with --topic")
        topics = await cluster.topics(wanted)
        targets = await _targets(cluster, topics, to)
        if not dry_run:
            await _commit(cluster, group, targets)
    return [
        {"topic": topic, "partition": partition, "was": committed.get((topic, partition)), "is": offset}
        for (topic, partition), offset in sorted(targets.items())
    ]


async def _targets(cluster: Cluster, topics: list[TopicLayout], to: str) -> dict[TopicPartition, int]:
    from penstock.cli.kafka import EARLIEST, LATEST

    starts, ends = await cluster.offsets(topics, EARLIEST), await cluster.offsets(topics, LATEST)
    if to == "earliest":
        return starts
    if to == "latest":
        return ends
    if to.isdigit():
        return {place: min(max(int(to), starts[place]), ends[place]) for place in ends}
    found = await cluster.offsets(topics, parse_time(to))
    return {place: offset if offset >= 0 else ends[place] for place, offset in found.items()}


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of an ISO time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{text!r} is not earliest, latest, an offset, or a time like 2026-01-31T08:00")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


async def _find(cluster: Cluster, group: str, *, may_be_new: bool = False) -> Any:
    from kio.schema.describe_groups.v5.request import DescribeGroupsRequest
    from kio.schema.types import GroupId

    from penstock.cli.kafka import check

    node = await cluster.coordinator(group)
    request = DescribeGroupsRequest(groups=(GroupId(group),), include_authorized_operations=False)
    (described,) = (await cluster.ask(request, node)).groups
    check(described.error_code, None, f"group {group}")
    if described.group_state == "Dead":
        if may_be_new:
            return None
        fail(f"there is no group {group!r}; `penstock group list` shows those there are")
    return described


async def _committed(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    from kio.schema.offset_fetch.v7.request import OffsetFetchRequest
    from kio.schema.types import GroupId

    from penstock.cli.kafka import check

    node = await cluster.coordinator(group)
    answer = await cluster.ask(OffsetFetchRequest(group_id=GroupId(group), topics=None), node)
    check(answer.error_code, None, f"group {group}")
    return {
        (str(topic.name), int(part.partition_index)): int(part.committed_offset)
        for topic in answer.topics
        for part in topic.partitions
        if part.committed_offset != _NO_OFFSET
    }


async def _commit(cluster: Cluster, group: str, offsets: dict[TopicPartition, int]) -> None:
    from kio.schema.offset_commit.v8.request import (
        OffsetCommitRequest,
        OffsetCommitRequestPartition,
        OffsetCommitRequestTopic,
    )
    from kio.schema.types import GroupId, TopicName
    from kio.static.primitive import i32, i64

    from penstock.cli.kafka import check

    by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=i32(partition), committed_offset=i64(offset), committed_metadata=None
            )
        )
    request = OffsetCommitRequest(
        group_id=GroupId(group),
        member_id="",
        topics=tuple(
            OffsetCommitRequestTopic(name=TopicName(topic), partitions=tuple(partitions))
            for topic, partitions in by_topic.items()
        ),
    )
    answer = await cluster.ask(request, await cluster.coordinator(group))
    for topic_answer in answer.topics:
        for part in topic_answer.partitions:
            check(part.error_code, None, f"group {group}: {topic_answer.name}-{part.partition_index}")
