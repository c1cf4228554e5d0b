"""aiokafka uses the broker as it would use Kafka."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import (
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    ConsumerRecord,
    TopicPartition,
)
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import MessageSizeTooLargeError, OffsetOutOfRangeError

from harness import BrokerProcess

NOW = int(time.time() * 1000)
"""Times in tests are near it: retention deletes what is older than a week."""
COMPRESSIONS = [None, "gzip", "snappy", "lz4", "zstd"]


@asynccontextmanager
async def running(client: Any) -> AsyncIterator[Any]:
    await client.start()
    try:
        yield client
    finally:
        await (client.close() if isinstance(client, AIOKafkaAdminClient) else client.stop())


def producer(broker: BrokerProcess, **config: Any) -> Any:
    return running(AIOKafkaProducer(bootstrap_servers=broker.address, **config))


def consumer(broker: BrokerProcess, *topics: str, **config: Any) -> Any:
    config = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **config}
    return running(AIOKafkaConsumer(*topics, bootstrap_servers=broker.address, **config))


async def create(broker: BrokerProcess, partitions: int = 1, **configs: str) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    async with running(AIOKafkaAdminClient(bootstrap_servers=broker.address)) as admin:
        await admin.create_topics([NewTopic(name, partitions, 1, topic_configs=settings)])
    return name


async def take(reader: AIOKafkaConsumer, count: int) -> list[ConsumerRecord]:
    async with asyncio.timeout(20):
        return [await reader.getone() for _ in range(count)]


async def until(condition: Callable[[], bool | Awaitable[bool]], timeout: float = 20.0) -> None:
    async with asyncio.timeout(timeout):
        while True:
            outcome = condition()
            if outcome if isinstance(outcome, bool) else await outcome:
                return
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_what_is_produced_is_consumed(
    shared_broker: BrokerProcess, compression: str | None, acks: int | str
) -> None:
    name = await create(shared_broker)
    values = [b"value-%d-" % n * 20 for n in range(300)]
    async with producer(shared_broker, compression_type=compression, acks=acks, linger_ms=10) as sender:
        for future in [await sender.send(name, value) for value in values]:
            await future
    async with consumer(shared_broker, name) as reader:
        assert [record.value for record in await take(reader, 300)] == values


async def test_every_part_of_a_record_comes_back(shared_broker: BrokerProcess) -> None:
    name = await create(shared_broker)
    headers = [("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b"")]
    async with producer(shared_broker) as sender:
        await sender.send_and_wait(name, b"v", key=b"k", headers=headers, timestamp_ms=NOW)
        await sender.send_and_wait(name, None, key=b"k")
        await sender.send_and_wait(name, b"no key")
    async with consumer(shared_broker, name) as reader:
        first, tombstone, keyless = await take(reader, 3)
    assert (first.key, first.value, list(first.headers)) == (b"k", b"v", headers)
    assert (first.timestamp, first.timestamp_type) == (NOW, 0)
    assert (tombstone.key, tombstone.value) == (b"k", None)
    assert (keyless.key, keyless.value) == (None, b"no key")


async def test_the_idempotent_producer_keeps_order(shared_broker: BrokerProcess) -> None:
    name = await create(shared_broker)
    async with producer(shared_broker, enable_idempotence=True) as sender:
        futures = [await sender.send(name, b"%d" % n) for n in range(2000)]
        offsets = [(await future).offset for future in futures]
    assert offsets == list(range(2000))
    async with consumer(shared_broker, name) as reader:
        assert [record.value for record in await take(reader, 2000)] == [b"%d" % n for n in range(2000)]


async def test_log_append_time_is_the_brokers_clock(shared_broker: BrokerProcess) -> None:
    name = await create(shared_broker, message_timestamp_type="LogAppendTime")
    async with producer(shared_broker) as sender:
        sent = await sender.send_and_wait(name, b"v", timestamp_ms=12345)
    async with consumer(shared_broker, name) as reader:
        (record,) = await take(reader, 1)
    assert record.timestamp_type == 1
    assert record.timestamp == sent.timestamp != 12345


async def test_a_message_over_the_topics_limit_is_refused(shared_broker: BrokerProcess) -> None:
    name = await create(shared_broker, max_message_bytes="2000")
    async with producer(shared_broker) as sender:
        with pytest.raises(MessageSizeTooLargeError):
            await sender.send_and_wait(name, b"x" * 3000)
        assert (await sender.send_and_wait(name, b"small")).offset == 0


async def test_reading_starts_where_it_is_told_to(shared_broker: BrokerProcess) -> None:
    name = await create(shared_broker)
    place = TopicPartition(name, 0)
    async with producer(shared_broker) as sender:
        for n in range(10):
            await sender.send_and_wait(name, b"%d" % n, timestamp_ms=NOW + 1000 * n)
        async with consumer(shared_broker) as reader:
            reader.assign([place])
            assert await reader.beginning_offsets([place]) == {place: 0}
            assert await reader.end_offsets([place]) == {place: 10}
            reader.seek(place, 8)
            assert [record.value for record in await take(reader, 2)] == [b"8", b"9"]
            await reader.seek_to_beginning(place)
            assert (await take(reader, 1))[0].value == b"0"
            found = await reader.offsets_for_times({place: NOW + 3500})
            assert (found[place].offset, found[place].timestamp) == (4, NOW + 4000)
            assert await reader.offsets_for_times({place: NOW + 60_000}) == {place: None}
            await reader.seek_to_end(place)
            assert await reader.position(place) == 10
            await sender.send_and_wait(name, b"new")
            assert [record.value for record in await take(reader, 1)] == [b"new"]


async def test_a_long_poll_ends_with_the_first_new_record(shared_broker: BrokerProcess) -> None:
    name = await create(shared_broker)
    loop = asyncio.get_running_loop()
    async with (
        consumer(shared_broker, name, fetch_max_wait_ms=15_000, auto_offset_reset="latest") as reader,
        producer(shared_broker) as sender,
    ):
        await reader.position(TopicPartition(name, 0))
        waiting = asyncio.create_task(reader.getone())
        await asyncio.sleep(0)
        started = loop.time()
        await sender.send_and_wait(name, b"now")
        assert (await asyncio.wait_for(waiting, 10)).value == b"now"
        assert loop.time() - started < 5, "it waited for the poll's end, not for the record"


async def test_an_offset_out_of_range_is_told_without_a_reset_policy(
    shared_broker: BrokerProcess,
) -> None:
    name = await create(shared_broker)
    async with consumer(shared_broker, auto_offset_reset="none") as reader:
        reader.assign([TopicPartition(name, 0)])
        reader.seek(TopicPartition(name, 0), 1000)
        with pytest.raises(OffsetOutOfRangeError):
            await asyncio.wait_for(reader.getone(), 10)


class Revocations(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.assigned = 0

    def on_partitions_revoked(self, revoked: Any) -> None: ...

    def on_partitions_assigned(self, assigned: Any) -> None:
        self.assigned += 1


@pytest.mark.parametrize("assignor", [RoundRobinPartitionAssignor, StickyPartitionAssignor])
async def test_a_group_shares_the_partitions_and_shares_anew_when_a_member_leaves(
    shared_broker: BrokerProcess, assignor: type
) -> None:
    name = await create(shared_broker, 6)
    config = {
        "group_id": f"g-{uuid.uuid4().hex[:12]}",
        "partition_assignment_strategy": [assignor],
        "heartbeat_interval_ms": 100,
    }

    def shared(*readers: AIOKafkaConsumer) -> bool:
        held = sorted(place.partition for reader in readers for place in reader.assignment())
        return held == list(range(6)) and all(len(r.assignment()) == 6 // len(readers) for r in readers)

    async with consumer(shared_broker, name, **config) as one:
        await until(lambda: shared(one))
        async with consumer(shared_broker, name, **config) as two:
            await until(lambda: shared(one, two))
            async with consumer(shared_broker, name, **config) as three:
                await until(lambda: shared(one, two, three))
            await until(lambda: shared(one, two))
        await until(lambda: shared(one))


async def test_a_static_member_comes_back_without_a_rebalance(shared_broker: BrokerProcess) -> None:
    name = await create(shared_broker, 4)
    config = {"group_id": f"g-{uuid.uuid4().hex[:12]}", "heartbeat_interval_ms": 100}
    listener = Revocations()
    async with consumer(shared_broker, group_instance_id="a", **config) as one:
        one.subscribe([name], listener=listener)
        async with consumer(shared_broker, name, group_instance_id="b", **config) as two:
            await until(lambda: len(one.assignment()) == len(two.assignment()) == 2)
            before = set(two.assignment())
            rounds = listener.assigned
        async with consumer(shared_broker, name, group_instance_id="b", **config) as again:
            await until(lambda: len(again.assignment()) == 2)
            assert set(again.assignment()) == before
        assert listener.assigned == rounds


async def test_a_member_that_dies_loses_its_partitions(shared_broker: BrokerProcess) -> None:
    name = await create(shared_broker, 2)
    group = f"g-{uuid.uuid4().hex[:12]}"
    config = {
        "group_id": group,
        "session_timeout_ms": 6000,
        "heartbeat_interval_ms": 100,
        "partition_assignment_strategy": [RangePartitionAssignor],
    }
    async with consumer(shared_broker, name, **config) as alive:
        await until(lambda: len(alive.assignment()) == 2)
        options = ["-X", "session.timeout.ms=6000", "-X", "partition.assignment.strategy=range"]
        victim = await asyncio.create_subprocess_exec(
            "kcat", "-q", "-b", shared_broker.address, *options, "-G", group, name
        )
        await until(lambda: len(alive.assignment()) == 1)
        victim.kill()  # no goodbye
        await victim.wait()
        await until(lambda: len(alive.assignment()) == 2)


async def test_a_group_goes_on_from_what_it_committed(shared_broker: BrokerProcess) -> None:
    name = await create(shared_broker)
    group = f"g-{uuid.uuid4().hex[:12]}"
    place = TopicPartition(name, 0)
    async with producer(shared_broker) as sender:
        for future in [await sender.send(name, b"%d" % n) for n in range(100)]:
            await future
    async with consumer(shared_broker, name, group_id=group) as reader:
        await take(reader, 40)
        await reader.commit({place: (40, "note")})
    async with consumer(shared_broker, name, group_id=group) as reader:
        assert await reader.committed(place) == 40
        assert [record.value for record in await take(reader, 60)] == [b"%d" % n for n in range(40, 100)]


async def test_committed_offsets_and_records_outlive_kill_nine(broker: BrokerProcess) -> None:
    name = await create(broker, 2)
    async with producer(broker, enable_idempotence=True) as sender:
        for n in range(50):
            await sender.send_and_wait(name, b"%d" % n, partition=0)
    async with consumer(broker, name, group_id="g") as reader:
        await take(reader, 20)
        await reader.commit({TopicPartition(name, 0): 20})
    broker.kill()
    broker.start()
    async with consumer(broker, name, group_id="g") as reader:
        assert [record.value for record in await take(reader, 30)] == [b"%d" % n for n in range(20, 50)]


async def test_a_consumer_at_the_tail_follows_from_segment_to_segment(shared_broker: BrokerProcess) -> None:
    name = await create(shared_broker, segment_bytes="16384")
    async with consumer(shared_broker, name) as reader, producer(shared_broker) as sender:
        for n in range(300):  # some 30 segments, and the reader at the end of each when it ends
            value = b"%d" % n + bytes(1500)
            await sender.send_and_wait(name, value)
            assert (await asyncio.wait_for(reader.getone(), 10)).value == value
