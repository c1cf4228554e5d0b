"""librdkafka (confluent-kafka) uses the broker as it would use Kafka."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

from harness import BrokerProcess, eventually

NOW = int(time.time() * 1000)
"""Times in tests are near it: retention deletes what is older than a week."""
COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def topic(shared_broker: BrokerProcess) -> Callable[..., str]:
    admin = AdminClient(client_config(shared_broker))

    def create(partitions: int = 1, **configs: str) -> str:
        name = f"t-{uuid.uuid4().hex[:12]}"
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        wanted = NewTopic(name, partitions, 1, config=settings)
        admin.create_topics([wanted])[name].result(10)
        return name

    return create


def client_config(broker: BrokerProcess) -> dict[str, Any]:
    return {"bootstrap.servers": broker.address, "log_level": 2}  # quiet when the broker stops


def producer(broker: BrokerProcess, **config: Any) -> Producer:
    return Producer({**client_config(broker), **{k.replace("_", "."): v for k, v in config.items()}})


def consumer(broker: BrokerProcess, **config: Any) -> Consumer:
    return Consumer(
        {
            **client_config(broker),
            "group.id": f"g-{uuid.uuid4().hex[:12]}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 200,
            "topic.metadata.refresh.interval.ms": 1000,
            **{k.replace("_", "."): v for k, v in config.items()},
        }
    )


def send(sender: Producer, topic: str, values: list[bytes], **message: Any) -> list[Message]:
    """Produce and wait; every message must be acknowledged. Returns the reports in order."""
    reports: list[Message] = []
    failed: list[KafkaError] = []

    def report(error: KafkaError | None, delivered: Message) -> None:
        if error is not None:
            failed.append(error)
        else:
            reports.append(delivered)

    for value in values:
        sender.produce(topic, value, on_delivery=report, **message)
    assert sender.flush(20) == 0
    assert not failed
    return reports


def take(reader: Consumer, count: int, timeout: float = 20.0) -> list[Message]:
    """Exactly the next `count` messages."""
    taken: list[Message] = []
    deadline = time.monotonic() + timeout
    while len(taken) < count:
        assert time.monotonic() < deadline, f"{len(taken)} of {count} messages came"
        message = reader.poll(0.2)
        if message is None:
            continue
        assert message.error() is None, message.error()
        taken.append(message)
    return taken


def read_all(broker: BrokerProcess, topic: str, count: int) -> list[Message]:
    reader = consumer(broker)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    try:
        return take(reader, count)
    finally:
        reader.close()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_what_is_produced_is_consumed(
    shared_broker: BrokerProcess, topic: Callable[..., str], compression: str, acks: str
) -> None:
    name = topic()
    values = [b"value-%d-" % n * 20 for n in range(500)]
    send(producer(shared_broker, compression_type=compression, acks=acks, linger_ms=20), name, values)
    assert [m.value() for m in read_all(shared_broker, name, 500)] == values


def test_every_part_of_a_record_comes_back(shared_broker: BrokerProcess, topic: Callable[..., str]) -> None:
    name = topic()
    sender = producer(shared_broker)
    headers = [("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b""), ("null", None)]
    send(sender, name, [b"v"], key=b"k", headers=headers, timestamp=NOW)
    send(sender, name, [None], key=b"k")  # type: ignore[list-item]
    send(sender, name, [b""], key=b"")
    send(sender, name, [b"no key"])
    first, tombstone, empty, keyless = read_all(shared_broker, name, 4)
    assert (first.key(), first.value(), first.headers()) == (b"k", b"v", headers)
    assert first.timestamp() == (1, NOW)
    assert (tombstone.key(), tombstone.value()) == (b"k", None)
    assert (empty.key(), empty.value()) == (b"", b"")
    assert (keyless.key(), keyless.value()) == (None, b"no key")
    assert [m.offset() for m in (first, tombstone, empty, keyless)] == [0, 1, 2, 3]


def test_the_idempotent_producer_keeps_order_over_partitions(
    shared_broker: BrokerProcess, topic: Callable[..., str]
) -> None:
    name = topic(3)
    sender = producer(shared_broker, enable_idempotence=True, linger_ms=1)
    for partition in range(3):
        reports = send(sender, name, [b"%d" % n for n in range(1000)], partition=partition)
        assert [m.offset() for m in reports] == list(range(1000))
    reader = consumer(shared_broker)
    reader.assign([TopicPartition(name, p, OFFSET_BEGINNING) for p in range(3)])
    by_partition: dict[int, list[bytes]] = {0: [], 1: [], 2: []}
    for message in take(reader, 3000):
        by_partition[message.partition()].append(message.value())
    reader.close()
    assert all(values == [b"%d" % n for n in range(1000)] for values in by_partition.values())


def test_log_append_time_is_the_brokers_clock(
    shared_broker: BrokerProcess, topic: Callable[..., str]
) -> None:
    name = topic(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    (report,) = send(producer(shared_broker), name, [b"v"], timestamp=12345)
    after = int(time.time() * 1000)
    kind, stamp = report.timestamp()
    assert kind == 2
    assert before <= stamp <= after
    for compression in COMPRESSIONS[1:]:
        send(producer(shared_broker, compression_type=compression), name, [b"v" * 500], timestamp=12345)
    read = read_all(shared_broker, name, 5)
    assert read[0].timestamp() == (2, stamp)
    assert all(m.timestamp()[0] == 2 and m.timestamp()[1] >= stamp for m in read)


def test_a_message_over_the_topics_limit_is_refused_and_the_next_is_taken(
    shared_broker: BrokerProcess, topic: Callable[..., str]
) -> None:
    name = topic(max_message_bytes="2000")
    sender = producer(shared_broker, linger_ms=0)
    outcomes: list[int | None] = []
    sender.produce(name, b"x" * 5000, on_delivery=lambda e, m: outcomes.append(e and e.code()))
    sender.flush(10)
    assert outcomes == [KafkaError.MSG_SIZE_TOO_LARGE]
    send(sender, name, [b"small"])
    assert [m.value() for m in read_all(shared_broker, name, 1)] == [b"small"]


def test_reading_starts_where_it_is_told_to(shared_broker: BrokerProcess, topic: Callable[..., str]) -> None:
    name = topic()
    sender = producer(shared_broker, linger_ms=0)
    for n in range(10):
        send(sender, name, [b"%d" % n], timestamp=NOW + 1000 * n)
    reader = consumer(shared_broker)
    assert reader.get_watermark_offsets(TopicPartition(name, 0), timeout=10) == (0, 10)

    reader.assign([TopicPartition(name, 0, 7)])
    assert [m.value() for m in take(reader, 3)] == [b"7", b"8", b"9"]

    times = [NOW + after for after in (-1000, 4000, 4001, 9000, 9001)]
    found = [reader.offsets_for_times([TopicPartition(name, 0, t)], timeout=10)[0].offset for t in times]
    assert found == [0, 4, 5, 9, -1]

    reader.assign([TopicPartition(name, 0, -1)])  # the end: only what comes from now on
    seen: list[bytes] = []

    def new_record_came() -> bool:
        send(sender, name, [b"new"])
        message = reader.poll(0.2)
        if message is not None:
            seen.append(message.value())
        return bool(seen)

    eventually(new_record_came)
    assert seen[0] == b"new"
    reader.close()


def test_an_offset_out_of_range_follows_the_clients_reset_policy(
    shared_broker: BrokerProcess, topic: Callable[..., str]
) -> None:
    name = topic()
    send(producer(shared_broker), name, [b"a", b"b"])
    reader = consumer(shared_broker)
    reader.assign([TopicPartition(name, 0, 1000)])
    assert [m.value() for m in take(reader, 2)] == [b"a", b"b"]
    reader.close()
    strict = consumer(shared_broker, auto_offset_reset="error")
    strict.assign([TopicPartition(name, 0, 1000)])
    codes: list[int] = []

    def refused() -> bool:
        message = strict.poll(0.2)
        if message is not None and message.error() is not None:
            codes.append(message.error().code())
        return KafkaError._AUTO_OFFSET_RESET in codes

    eventually(refused)
    strict.close()


def test_an_unknown_topic_is_an_error_when_the_client_does_not_want_it_made(
    shared_broker: BrokerProcess,
) -> None:
    reader = consumer(shared_broker, allow_auto_create_topics=False)
    with pytest.raises(KafkaException) as caught:
        reader.get_watermark_offsets(TopicPartition("no-such-topic", 0), timeout=5)
    assert caught.value.args[0].code() in (
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
    )
    reader.close()


def test_a_transactional_producer_is_told_at_once_that_there_are_none(shared_broker: BrokerProcess) -> None:
    sender = producer(shared_broker, transactional_id="tx")
    started = time.monotonic()
    with pytest.raises(KafkaException) as caught:
        sender.init_transactions(30)
    assert caught.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert time.monotonic() - started < 10


class Group:
    """Members of one group, polled in turns; remembers who got what."""

    def __init__(self, broker: BrokerProcess, topic: str, **config: Any) -> None:
        self.broker = broker
        self.topic = topic
        self.config = {"group_id": f"g-{uuid.uuid4().hex[:12]}", **config}
        self.members: dict[str, Consumer] = {}
        self.revoked: list[tuple[str, list[int]]] = []
        self.seen: list[tuple[str, int, int]] = []

    def join(self, member: str, **config: Any) -> None:
        reader = consumer(self.broker, **{**self.config, **config})

        def on_revoke(_: Consumer, partitions: list[TopicPartition]) -> None:
            self.revoked.append((member, sorted(p.partition for p in partitions)))

        reader.subscribe([self.topic], on_revoke=on_revoke)
        self.members[member] = reader

    def leave(self, member: str) -> None:
        self.members.pop(member).close()

    def poll(self) -> None:
        for name, reader in self.members.items():
            message = reader.poll(0.05)
            if message is not None:
                assert message.error() is None, message.error()
                self.seen.append((name, message.partition(), message.offset()))

    def assigned(self) -> dict[str, list[int]]:
        return {
            name: sorted(p.partition for p in reader.assignment()) for name, reader in self.members.items()
        }

    def settle(self, expected: Callable[[dict[str, list[int]]], bool]) -> dict[str, list[int]]:
        def settled() -> bool:
            self.poll()
            return expected(self.assigned())

        eventually(settled, 30)
        return self.assigned()

    def close(self) -> None:
        for name in list(self.members):
            self.leave(name)


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_shares_the_partitions_and_shares_anew_when_a_member_leaves(
    shared_broker: BrokerProcess, topic: Callable[..., str], assignor: str
) -> None:
    group = Group(shared_broker, topic(6), partition_assignment_strategy=assignor)

    def shared(assigned: dict[str, list[int]]) -> bool:
        """Every partition has exactly one owner, and nobody has more than its share."""
        held = sorted(p for partitions in assigned.values() for p in partitions)
        return held == list(range(6)) and max(map(len, assigned.values())) == 6 // len(assigned)

    group.join("a")
    group.settle(shared)
    group.join("b")
    group.settle(shared)
    group.join("c")
    before = group.settle(shared)
    group.leave("c")
    after = group.settle(shared)
    if assignor == "cooperative-sticky":
        assert set(before["a"]) <= set(after["a"])
        assert set(before["b"]) <= set(after["b"])
    group.close()


def test_a_cooperative_member_keeps_what_it_does_not_give_away(
    shared_broker: BrokerProcess, topic: Callable[..., str]
) -> None:
    group = Group(shared_broker, topic(4), partition_assignment_strategy="cooperative-sticky")
    group.join("a")
    group.settle(lambda assigned: len(assigned["a"]) == 4)
    group.join("b")
    group.settle(lambda assigned: len(assigned["a"]) == len(assigned["b"]) == 2)
    given = [partitions for member, partitions in group.revoked if member == "a"]
    assert sum(map(len, given)) == 2, f"an eager rebalance would have revoked all four: {given}"
    group.close()


def test_a_static_member_comes_back_without_a_rebalance(
    shared_broker: BrokerProcess, topic: Callable[..., str]
) -> None:
    group = Group(shared_broker, topic(4))
    group.join("a", group_instance_id="host-a")
    group.join("b", group_instance_id="host-b")
    before = group.settle(lambda assigned: all(len(p) == 2 for p in assigned.values()))
    group.revoked.clear()
    group.leave("b")  # librdkafka does not leave the group when it is static
    group.revoked.clear()
    group.join("b", group_instance_id="host-b")
    after = group.settle(lambda assigned: len(assigned["b"]) == 2)
    assert after == before
    assert not [entry for entry in group.revoked if entry[0] == "a"]
    group.close()


def test_a_group_goes_on_from_what_it_committed(
    shared_broker: BrokerProcess, topic: Callable[..., str]
) -> None:
    name = topic()
    send(producer(shared_broker), name, [b"%d" % n for n in range(100)])
    group = f"g-{uuid.uuid4().hex[:12]}"
    first = consumer(shared_broker, group_id=group)
    first.subscribe([name])
    last = take(first, 40)[-1]
    committed = first.commit(message=last, asynchronous=False)
    assert committed[0].offset == 40
    first.close()
    second = consumer(shared_broker, group_id=group)
    second.subscribe([name])
    assert [m.value() for m in take(second, 60)] == [b"%d" % n for n in range(40, 100)]
    (found,) = second.committed([TopicPartition(name, 0)], timeout=10)
    assert found.offset == 40
    second.close()


def test_commit_metadata_comes_back(shared_broker: BrokerProcess, topic: Callable[..., str]) -> None:
    name = topic(2)
    reader = consumer(shared_broker)
    reader.commit(offsets=[TopicPartition(name, 1, 17, metadata="from here")], asynchronous=False)
    nothing, found = reader.committed([TopicPartition(name, 0), TopicPartition(name, 1)], timeout=10)
    assert nothing.offset == -1001  # librdkafka's "no offset stored"
    assert (found.offset, found.metadata) == (17, "from here")
    reader.close()


def test_new_partitions_and_topics_reach_a_pattern_subscription(
    shared_broker: BrokerProcess, topic: Callable[..., str]
) -> None:
    prefix = f"p{uuid.uuid4().hex[:8]}"
    admin = AdminClient(client_config(shared_broker))
    admin.create_topics([NewTopic(f"{prefix}-one", 1)])[f"{prefix}-one"].result(10)
    reader = consumer(shared_broker)
    reader.subscribe([f"^{prefix}-.*"])
    eventually(lambda: reader.poll(0.1) is None and len(reader.assignment()) == 1, 20)
    admin.create_topics([NewTopic(f"{prefix}-two", 2)])[f"{prefix}-two"].result(10)
    eventually(lambda: reader.poll(0.1) is None and len(reader.assignment()) == 3, 20)
    reader.close()
