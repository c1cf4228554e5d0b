"""kafka-python uses the broker as it would use Kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic
from kafka.consumer.fetcher import ConsumerRecord
from kafka.errors import MessageSizeTooLargeError

from harness import BrokerProcess, background, eventually

NOW = int(time.time() * 1000)
"""Times in tests are near it: retention deletes what is older than a week."""


@pytest.fixture(scope="module")
def admin(shared_broker: BrokerProcess) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=shared_broker.address)
    yield client
    client.close()


@pytest.fixture
def topic(admin: KafkaAdminClient) -> Callable[..., str]:
    def create(partitions: int = 1, **configs: str) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        admin.create_topics([NewTopic(name, partitions, 1, topic_configs=settings)])
        return name

    return create


@pytest.fixture
def producer(shared_broker: BrokerProcess) -> Iterator[Callable[..., KafkaProducer]]:
    opened: list[KafkaProducer] = []

    def connect(**config: Any) -> KafkaProducer:
        opened.append(KafkaProducer(bootstrap_servers=shared_broker.address, **config))
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


@pytest.fixture
def consumer(shared_broker: BrokerProcess) -> Iterator[Callable[..., KafkaConsumer]]:
    opened: list[KafkaConsumer] = []

    def connect(*topics: str, **config: Any) -> KafkaConsumer:
        config = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **config}
        opened.append(KafkaConsumer(*topics, bootstrap_servers=shared_broker.address, **config))
        return opened[-1]

    yield connect
    for client in opened:
        client.close()


def take(reader: KafkaConsumer, count: int, timeout: float = 20.0) -> list[ConsumerRecord]:
    taken: list[ConsumerRecord] = []
    deadline = time.monotonic() + timeout
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} records came"
        for records in reader.poll(200, max_records=count - len(taken)).values():
            taken += records
    return taken


@pytest.mark.parametrize("compression", [None, "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_what_is_produced_is_consumed(
    topic: Callable[..., str],
    producer: Callable[..., KafkaProducer],
    consumer: Callable[..., KafkaConsumer],
    compression: str | None,
    acks: int | str,
) -> None:
    name = topic()
    values = [b"value-%d-" % n * 20 for n in range(300)]
    sender = producer(compression_type=compression, acks=acks, linger_ms=5, enable_idempotence=acks == "all")
    for future in [sender.send(name, value) for value in values]:
        future.get(20)
    assert [record.value for record in take(consumer(name), 300)] == values


def test_every_part_of_a_record_comes_back(
    topic: Callable[..., str],
    producer: Callable[..., KafkaProducer],
    consumer: Callable[..., KafkaConsumer],
) -> None:
    name = topic()
    sender = producer()
    headers = [("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b"")]
    sender.send(name, b"v", key=b"k", headers=headers, timestamp_ms=NOW).get(10)
    sender.send(name, None, key=b"k").get(10)
    sender.send(name, b"no key").get(10)
    first, tombstone, keyless = take(consumer(name), 3)
    assert (first.key, first.value, list(first.headers)) == (b"k", b"v", headers)
    assert (first.timestamp, first.timestamp_type) == (NOW, 0)
    assert (tombstone.key, tombstone.value) == (b"k", None)
    assert (keyless.key, keyless.value) == (None, b"no key")


def test_log_append_time_is_the_brokers_clock(
    topic: Callable[..., str],
    producer: Callable[..., KafkaProducer],
    consumer: Callable[..., KafkaConsumer],
) -> None:
    name = topic(message_timestamp_type="LogAppendTime")
    sent = producer().send(name, b"v", timestamp_ms=12345).get(10)
    (record,) = take(consumer(name), 1)
    assert record.timestamp_type == 1
    assert record.timestamp == sent.timestamp != 12345


def test_a_message_over_the_topics_limit_is_refused(
    topic: Callable[..., str], producer: Callable[..., KafkaProducer]
) -> None:
    name = topic(max_message_bytes="2000")
    sender = producer(enable_idempotence=False)  # its idempotent producer is of no use after a refusal
    with pytest.raises(MessageSizeTooLargeError):
        sender.send(name, b"x" * 3000).get(10)
    assert sender.send(name, b"small").get(10).offset == 0


def test_reading_starts_where_it_is_told_to(
    topic: Callable[..., str],
    producer: Callable[..., KafkaProducer],
    consumer: Callable[..., KafkaConsumer],
) -> None:
    name = topic()
    place = TopicPartition(name, 0)
    sender = producer()
    for n in range(10):
        sender.send(name, b"%d" % n, timestamp_ms=NOW + 1000 * n).get(10)
    reader = consumer()
    reader.assign([place])
    assert reader.beginning_offsets([place]) == {place: 0}
    assert reader.end_offsets([place]) == {place: 10}
    reader.seek(place, 8)
    assert [record.value for record in take(reader, 2)] == [b"8", b"9"]
    found = reader.offsets_for_times({place: NOW + 3500})[place]
    assert (found.offset, found.timestamp) == (4, NOW + 4000)
    assert reader.offsets_for_times({place: NOW + 60_000}) == {place: None}
    reader.seek_to_end(place)
    assert reader.position(place) == 10
    sender.send(name, b"new").get(10)
    assert [record.value for record in take(reader, 1)] == [b"new"]


def test_a_group_goes_on_from_what_it_committed(
    topic: Callable[..., str],
    producer: Callable[..., KafkaProducer],
    consumer: Callable[..., KafkaConsumer],
) -> None:
    name = topic()
    place = TopicPartition(name, 0)
    group = f"g-{uuid.uuid4().hex[:12]}"
    sender = producer()
    for future in [sender.send(name, b"%d" % n) for n in range(50)]:
        future.get(10)
    first = consumer(name, group_id=group)
    take(first, 20)
    first.commit({place: OffsetAndMetadata(20, "note", -1)})
    first.close()
    second = consumer(name, group_id=group)
    assert [record.value for record in take(second, 30)] == [b"%d" % n for n in range(20, 50)]
    assert second.committed(place) == 20


def test_a_group_shares_the_partitions_and_shares_anew_when_a_member_leaves(
    topic: Callable[..., str], consumer: Callable[..., KafkaConsumer]
) -> None:
    name = topic(4)
    config = {"group_id": f"g-{uuid.uuid4().hex[:12]}", "heartbeat_interval_ms": 100}
    stay, go = consumer(name, **config), consumer(name, **config)
    leaving = False

    def other_member() -> None:
        while not leaving:
            go.poll(50)
        go.close()

    def holds(count: int) -> bool:
        stay.poll(50)
        return len(stay.assignment()) == count

    with background(other_member):
        eventually(lambda: holds(2), 20)
        leaving = True
        eventually(lambda: holds(4), 20)
