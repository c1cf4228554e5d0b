"""The reading side of experiments: one process that reads a topic round and round for some seconds.

Run as `python -m penstock.bench.reading WAY ADDRESS TOPIC PARTITIONS SECONDS`; prints what it read as JSON.
Ways: raw, aiokafka, librdkafka (pull); batches, records (push); idle, which does nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from penstock.bench.experiment import CannotStart, Figures
from penstock.bench.servers import Server
from penstock.shm.places import Edge
from penstock.shm.reader import LogReader
from penstock.shm.subscribe import subscribe

_GRACE: Final = 60.0
_AT_ONCE: Final = 256
"""Batches or records between two looks at the clock."""

Read = tuple[int, int]
"""Records and bytes."""


def measured_read(server: Server, way: str, topic: str, partitions: int, seconds: float) -> Figures:
    """Read for a while and say what it cost the broker."""
    command = [sys.executable, "-m", __name__, way, server.address, topic, str(partitions), str(seconds)]
    before = server.cpu_seconds()
    report = server.rig.run_json("read", command, seconds + _GRACE)
    spent = server.cpu_seconds() - before
    gigabytes = report["bytes"] / 1e9
    figures: Figures = {
        "broker_cpu_seconds": spent,
        "broker_cpu_share": spent / report["seconds"],
        "seconds": report["seconds"],
    }
    if gigabytes:
        figures |= {
            "records_per_second": report["records"] / report["seconds"],
            "gigabytes_per_second": gigabytes / report["seconds"],
            "broker_cpu_seconds_per_gb": spent / gigabytes,
        }
    return figures


def check(way: str) -> None:
    """Raise CannotStart if the library for a way of reading isn't installed."""
    if way == "librdkafka":
        try:
            import confluent_kafka  # noqa: F401
        except ImportError:
            raise CannotStart("confluent-kafka is not installed") from None


# Each way yields what it read in a while, for ever; the first thing it yields says that it is set up.


def _raw(address: str, topic: str, partitions: int) -> Iterator[Read]:
    from penstock.bench.puller import Puller

    puller = Puller(address, topic, dict.fromkeys(range(partitions), 0))
    yield 0, 0
    while True:
        yield puller.pull()


def _aiokafka(address: str, topic: str, partitions: int) -> Iterator[Read]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    loop = asyncio.new_event_loop()
    places = [TopicPartition(topic, index) for index in range(partitions)]

    async def start() -> tuple[AIOKafkaConsumer, dict[TopicPartition, int]]:
        consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
        consumer.assign(places)
        await consumer.start()
        await consumer.seek_to_beginning()
        return consumer, await consumer.end_offsets(places)

    consumer, ends = loop.run_until_complete(start())
    yield 0, 0
    while True:
        records = size = 0
        for place, messages in loop.run_until_complete(consumer.getmany(timeout_ms=500)).items():
            records += len(messages)
            size += sum(len(message.value) for message in messages)
            if messages[-1].offset + 1 >= ends[place]:
                consumer.seek(place, 0)
        yield records, size


def _librdkafka(address: str, topic: str, partitions: int) -> Iterator[Read]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False})
    places = [TopicPartition(topic, index, 0) for index in range(partitions)]
    ends = {place.partition: consumer.get_watermark_offsets(place, 10)[1] for place in places}
    consumer.assign(places)
    yield 0, 0
    while True:
        records = size = 0
        for message in consumer.consume(10_000, 0.5):
            partition, offset, value = message.partition(), message.offset(), message.value()
            if message.error() is None and partition is not None and offset is not None:
                records += 1
                size += len(value or b"")
                if offset + 1 >= ends[partition]:
                    consumer.seek(TopicPartition(topic, partition, 0))
        yield records, size


def _batches(address: str, topic: str, partitions: int) -> Iterator[Read]:
    subscription = subscribe(address, {topic: None})
    yield 0, 0
    while True:
        with LogReader.of(subscription, Edge.EARLIEST) as reader:
            found = reader.batches(wait=0)
            while some := [(b.next_offset - b.start_offset, len(b.data)) for b in islice(found, _AT_ONCE)]:
                yield sum(records for records, _ in some), sum(size for _, size in some)


def _records(address: str, topic: str, partitions: int) -> Iterator[Read]:
    subscription = subscribe(address, {topic: None})
    yield 0, 0
    while True:
        with LogReader.of(subscription, Edge.EARLIEST) as reader:
            found = reader.records(wait=0)
            while some := [len(record.value or b"") for _, record in islice(found, _AT_ONCE)]:
                yield len(some), sum(some)


def _idle(address: str, topic: str, partitions: int) -> Iterator[Read]:
    while True:
        yield 0, 0
        time.sleep(0.1)


WAYS: Final[dict[str, Callable[[str, str, int], Iterator[Read]]]] = {
    "raw": _raw,
    "aiokafka": _aiokafka,
    "librdkafka": _librdkafka,
    "batches": _batches,
    "records": _records,
    "idle": _idle,
}


def main(way: str, address: str, topic: str, partitions: str, seconds: str) -> dict[str, Any]:
    reads = WAYS[way](address, topic, int(partitions))
    next(reads)
    records = size = 0
    started = time.perf_counter()
    deadline = started + float(seconds)
    for more_records, more_bytes in reads:
        records += more_records
        size += more_bytes
        if time.perf_counter() >= deadline:
            break
    return {"records": records, "bytes": size, "seconds": time.perf_counter() - started}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])), flush=True)
    os._exit(0)  # clients that were left in the middle of a read have threads that would be waited for
