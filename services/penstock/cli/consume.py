"""`penstock consume`: records to standard output, by pull or, with --push, out of shared memory."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.options import BROKER, BrokerAddress
from penstock.cli.terminal import fail, run

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer

    from penstock.shm.places import Place
    from penstock.shm.reader import LogReader

_WAIT_MS = 200


def consume(
    topic: Annotated[str, typer.Argument(help="Where from.")],
    start: Annotated[
        str, typer.Option("--from", metavar="WHERE", help="earliest, latest, or an offset.")
    ] = "earliest",
    partition: Annotated[int | None, typer.Option("--partition", "-p", min=0, help="Only this one.")] = None,
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Go on where this group was, and commit.")
    ] = None,
    maximum: Annotated[int | None, typer.Option("--max", "-m", min=1, help="Stop after so many.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end.")] = False,
    push: Annotated[bool, typer.Option("--push", help="Out of shared memory, without requests.")] = False,
    keys: Annotated[bool, typer.Option("--keys", help="Key, tab, value.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per record.")] = False,
    broker: BrokerAddress = BROKER,
) -> None:
    """Print records to standard output: what is there now or, with --follow, for ever.

    Example: penstock consume clicks --from latest --follow --push --json
    """
    if start not in ("earliest", "latest") and not start.isdigit():
        fail(f"--from {start}: it is earliest, latest or an offset")
    if push and group is not None:
        fail("--push reads without a group: leave out --group")
    if group is not None and partition is not None:
        fail("in a group, partitions are assigned: leave out --partition or --group")
    printer = _Printer(keys, as_json, maximum)
    try:
        if push:
            _push(broker, topic, start, partition, follow, printer)
        else:
            run(_pull(broker, topic, start, partition, group, follow, printer))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        printer.flush()


@dataclass(slots=True)
class _Printer:
    keys: bool
    as_json: bool
    maximum: int | None
    printed: int = 0

    @property
    def done(self) -> bool:
        return self.maximum is not None and self.printed >= self.maximum

    def show(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Any,
    ) -> None:
        out = sys.stdout.buffer
        if self.as_json:
            record = {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "timestamp": timestamp,
                "key": _text(key),
                "value": _text(value),
                "headers": [[name, _text(content)] for name, content in headers],
            }
            out.write(json.dumps(record).encode() + b"\n")
        else:
            if self.keys:
                out.write((b"" if key is None else key) + b"\t")
            out.write((b"" if value is None else value) + b"\n")
        self.printed += 1

    def flush(self) -> None:
        sys.stdout.buffer.flush()


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode(errors="backslashreplace")


async def _pull(
    broker: str,
    topic: str,
    start: str,
    partition: int | None,
    group: str | None,
    follow: bool,
    printer: _Printer,
) -> None:
    from aiokafka import AIOKafkaConsumer, TopicPartition
    from aiokafka.errors import KafkaError

    from penstock.cli.kafka import Cluster

    async with Cluster(broker) as cluster:  # says better than aiokafka what is wrong, and makes no topic
        (layout,) = await cluster.topics([topic])
    indexes = [place.partition for place in layout.partitions]
    if partition is not None and partition not in indexes:
        fail(f"topic {topic} has partitions 0 to {indexes[-1]}, not {partition}")
    wanted = [TopicPartition(topic, index) for index in indexes if partition in (None, index)]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker,
        client_id="penstock-consume",
        group_id=group,
        enable_auto_commit=False,
        auto_offset_reset="latest" if start == "latest" else "earliest",
        fetch_max_wait_ms=_WAIT_MS,
    )
    try:
        await consumer.start()
        if group is None:
            consumer.assign(wanted)
            await _seek(consumer, wanted, start)
        else:
            consumer.subscribe([topic])
        ends = await consumer.end_offsets(wanted)
        await _print_pulled(consumer, None if follow else ends, group is not None, printer)
    except KafkaError as error:
        fail(f"{topic}: {error}")
    finally:
        await consumer.stop()


async def _seek(consumer: AIOKafkaConsumer, wanted: list[Any], start: str) -> None:
    if start == "earliest":
        await consumer.seek_to_beginning(*wanted)
    elif start == "latest":
        await consumer.seek_to_end(*wanted)
    else:
        beginnings, ends = await consumer.beginning_offsets(wanted), await consumer.end_offsets(wanted)
        for place in wanted:
            consumer.seek(place, min(max(int(start), beginnings[place]), ends[place]))


async def _print_pulled(
    consumer: AIOKafkaConsumer, ends: dict[Any, int] | None, commits: bool, printer: _Printer
) -> None:
    while not printer.done:
        found = await consumer.getmany(timeout_ms=_WAIT_MS)
        finished = {}
        for place, records in found.items():
            for record in records:
                if printer.done:
                    break
                printer.show(
                    place.topic,
                    place.partition,
                    record.offset,
                    record.timestamp,
                    record.key,
                    record.value,
                    record.headers,
                )
                finished[place] = record.offset + 1
        printer.flush()
        if commits and finished:
            await consumer.commit(finished)
        assigned = consumer.assignment()
        if ends is None or not assigned:
            continue
        at_end = [await consumer.position(place) >= ends[place] for place in assigned]
        if all(at_end):
            return


def _push(
    broker: str, topic: str, start: str, partition: int | None, follow: bool, printer: _Printer
) -> None:
    from penstock.shm.places import Edge, Interrupted, NotInMemory, NotLocal
    from penstock.shm.reader import LogReader
    from penstock.shm.subscribe import BrokerUnreachable, PartitionRefused, SubscribeFailed, subscribe

    begin = {"earliest": Edge.EARLIEST, "latest": Edge.LATEST}.get(start)
    try:
        subscription = subscribe(broker, {topic: None if partition is None else [partition]})
        where = int(start) if begin is None else begin
        with LogReader.of(subscription, where, label="penstock consume") as reader:
            ends = {served.place: served.high_watermark for served in subscription.partitions}
            _print_pushed(reader, None if follow else ends, printer)
    except BrokerUnreachable:
        from penstock.cli.kafka import no_broker

        raise no_broker(broker) from None
    except PartitionRefused as error:
        fail(f"{broker} has no {error.topic}-{error.partition}; `penstock topic list` shows what there is")
    except NotLocal as error:
        fail(f"{error}; leave out --push to pull instead")
    except NotInMemory as error:
        fail(f"{error}; leave out --push to read it from disk, or start at --from latest")
    except (Interrupted, SubscribeFailed) as error:
        fail(str(error))


def _print_pushed(reader: LogReader, ends: dict[Place, int] | None, printer: _Printer) -> None:
    for place, record in reader.records(wait=math.inf if ends is None else 0):
        if ends is not None and record.offset >= ends[place]:
            # Producers go on: what was there when we came is all that was asked for.
            if all(offset >= ends[other] for other, offset in reader.positions.items()):
                return
            continue
        printer.show(
            place.topic,
            place.partition,
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            record.headers,
        )
        if ends is None:
            printer.flush()
        if printer.done:
            return
