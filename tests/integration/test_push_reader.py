"""The push reader next to a real broker, with a real Kafka client producing, on good days and bad ones."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from harness import BrokerProcess, background, eventually
from penstock.shm import layout
from penstock.shm.places import (
    BrokerGone,
    BrokerRestarted,
    Edge,
    Fenced,
    Gone,
    Interrupted,
    NotInMemory,
    Place,
)
from penstock.shm.reader import LogReader
from penstock.shm.subscribe import PartitionRefused, subscribe

SMALL_SEGMENTS = {"segment.bytes": "65536"}


def create_topic(broker: BrokerProcess, partitions: int = 1, **configs: str) -> str:
    name = f"push-{uuid.uuid4().hex[:12]}"
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 2})
    settings = {**SMALL_SEGMENTS, **{key.replace("_", "."): value for key, value in configs.items()}}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(10)
    return name


def new_producer(broker: BrokerProcess, **config: Any) -> Producer:
    return Producer(
        {
            "bootstrap.servers": broker.address,
            "log_level": 2,
            "linger.ms": 1,
            "batch.num.messages": 50,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.max.ms": 100,
            **config,
        }
    )


class Numbers:
    """Produces 0, 1, 2, ... to a partition and remembers where each was acknowledged."""

    def __init__(self, broker: BrokerProcess, topic: str, partition: int = 0, size: int = 100) -> None:
        self.acknowledged: dict[int, int] = {}
        self.errors: list[str] = []
        self._producer = new_producer(broker, **{"enable.idempotence": True})
        self._topic = topic
        self._partition = partition
        self._size = size
        self._next = 0

    def send(self, count: int) -> None:
        for number in range(self._next, self._next + count):
            value = str(number).encode().ljust(self._size, b".")
            self._producer.produce(
                self._topic, value, str(number).encode(), self._partition, on_delivery=self._delivered
            )
            self._producer.poll(0)
        self._next += count

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.acknowledged[int(message.key())] = message.offset()

    def flush(self) -> None:
        assert self._producer.flush(30) == 0
        assert self.errors == []

    def stream(self, stop: threading.Event) -> None:
        """Send until told to stop, never far ahead of what the broker has taken."""
        while not stop.is_set():
            if self._next - len(self.acknowledged) < 500:
                self.send(20)
            self._producer.poll(0.002)
        self.flush()


class Checked:
    """Reads numbers, and fails at the first that is lost, repeated, out of order or torn."""

    def __init__(self, size: int = 100) -> None:
        self.offset = 0
        self.count = 0
        self._size = size

    def take(self, records: Iterator[tuple[Place, Any]], until: float = math.inf) -> None:
        for _, record in records:
            assert record.offset == self.offset
            assert record.key == str(self.count).encode()
            assert record.value == record.key.ljust(self._size, b".")
            self.offset += 1
            self.count += 1
            if self.count >= until:
                return


@contextlib.contextmanager
def streaming(numbers: Numbers) -> Iterator[None]:
    """Numbers that go on being produced for the length of a block."""
    stop = threading.Event()
    with background(lambda: numbers.stream(stop)) as thread:
        try:
            yield
        finally:
            stop.set()
    assert not thread.is_alive()
    assert numbers.errors == []


def attach(broker: BrokerProcess, topic: str, start: Any = Edge.EARLIEST, **options: Any) -> LogReader:
    return LogReader.of(subscribe(broker.address, {topic: None}), start, **options)


def read_to(reader: LogReader, checked: Checked, count: int, timeout: float = 20) -> None:
    """Go on until `count` records have come."""
    if checked.count < count:
        checked.take(reader.records(wait=timeout), count)
    assert checked.count == count, f"{checked.count} records came, expected {count}"


def test_every_record_once_and_in_order_while_they_are_produced(shared_broker: BrokerProcess) -> None:
    topic = create_topic(shared_broker)
    numbers = Numbers(shared_broker, topic)
    checked = Checked()
    with attach(shared_broker, topic) as reader:
        with streaming(numbers):
            read_to(reader, checked, 5000)
        read_to(reader, checked, len(numbers.acknowledged))
        checked.take(reader.records(wait=0.05))
        assert checked.count == len(numbers.acknowledged)
        directory = shared_broker.memory_dir / next(iter(reader.positions)).topic_id.hex() / "0"
        assert len(list(directory.glob("*.seg"))) > 5  # it went through many segments


def test_every_partition_and_every_start(shared_broker: BrokerProcess) -> None:
    topic = create_topic(shared_broker, 3)
    for partition in range(3):
        numbers = Numbers(shared_broker, topic, partition)
        numbers.send(300 * (partition + 1))
        numbers.flush()
    with attach(shared_broker, topic) as reader:
        assert sorted(reader.lag.values()) == [300, 600, 900]
        seen = [(place.partition, record.offset) for place, record in reader.records(wait=0)]
        assert sorted(seen) == [(part, at) for part in range(3) for at in range(300 * (part + 1))]
    with attach(shared_broker, topic, Edge.LATEST) as reader:
        assert list(reader.records(wait=0)) == []
    with attach(shared_broker, topic, 250) as reader:
        assert len(list(reader.records(wait=0))) == 50 + 350 + 650


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches_are_read(shared_broker: BrokerProcess, codec: str) -> None:
    topic = create_topic(shared_broker)
    producer = new_producer(shared_broker, **{"compression.type": codec})
    for number in range(500):
        producer.produce(topic, str(number).encode().ljust(100, b"."))
    assert producer.flush(10) == 0
    with attach(shared_broker, topic) as reader:
        values = [record.value for _, record in reader.records(wait=0)]
    assert values == [str(number).encode().ljust(100, b".") for number in range(500)]


def test_durability_disk_is_read_after_the_disk_has_it(shared_broker: BrokerProcess) -> None:
    topic = create_topic(shared_broker, durability="disk")
    numbers = Numbers(shared_broker, topic)
    checked = Checked()
    with attach(shared_broker, topic) as reader:
        numbers.send(500)
        numbers.flush()
        read_to(reader, checked, 500)


def test_an_unknown_topic_is_refused(shared_broker: BrokerProcess) -> None:
    with pytest.raises(PartitionRefused, match="no-such-topic-0"):
        subscribe(shared_broker.address, {"no-such-topic": None})


def test_a_deleted_topic_is_gone(shared_broker: BrokerProcess) -> None:
    topic = create_topic(shared_broker)
    numbers = Numbers(shared_broker, topic)
    numbers.send(10)
    numbers.flush()
    with attach(shared_broker, topic) as reader:
        checked = Checked()
        read_to(reader, checked, 10)
        admin = AdminClient({"bootstrap.servers": shared_broker.address})
        admin.delete_topics([topic])[topic].result(10)
        with pytest.raises(Gone) as caught:
            checked.take(reader.records(wait=5))
        assert caught.value.offset == 10


def test_deleted_records_are_not_read(shared_broker: BrokerProcess) -> None:
    topic = create_topic(shared_broker)
    numbers = Numbers(shared_broker, topic)
    numbers.send(1000)
    numbers.flush()
    admin = AdminClient({"bootstrap.servers": shared_broker.address})
    for future in admin.delete_records([TopicPartition(topic, 0, 555)]).values():
        future.result(10)
    with attach(shared_broker, topic) as reader:
        assert [record.offset for _, record in reader.records(wait=0)] == list(range(555, 1000))
    with attach(shared_broker, topic, 10) as reader, pytest.raises(NotInMemory, match="starts at 555"):
        next(reader.records())


# -- bad days -------------------------------------------------------------------------------------------


def test_s9_a_killed_broker_is_noticed_in_time(broker: BrokerProcess) -> None:
    topic = create_topic(broker)
    numbers = Numbers(broker, topic)
    numbers.send(100)
    numbers.flush()
    with attach(broker, topic) as reader:
        checked = Checked()
        read_to(reader, checked, 100)
        broker.kill()
        killed = time.monotonic()
        with pytest.raises(BrokerGone) as caught:
            checked.take(reader.records(wait=10))
        assert 0.5 < time.monotonic() - killed < 1.8
        assert caught.value.offset == 100
        with pytest.raises(BrokerGone):
            reader.reattach()
        broker.start()
        reader.reattach(timeout=10)
        numbers.send(100)
        numbers.flush()
        read_to(reader, checked, 200)


def test_a_clean_stop_and_start_loses_nothing(broker: BrokerProcess) -> None:
    topic = create_topic(broker)
    numbers = Numbers(broker, topic)
    numbers.send(1000)
    numbers.flush()
    with attach(broker, topic) as reader:
        checked = Checked()
        checked.take(itertools.islice(reader.records(), 500))
        broker.stop()
        with pytest.raises((BrokerGone, Fenced, BrokerRestarted)):
            checked.take(reader.records(wait=10))
        broker.start()
        reader.reattach(timeout=10)
        numbers.send(100)
        numbers.flush()
        read_to(reader, checked, 1100)


def test_the_writer_killed_at_any_point(broker: BrokerProcess) -> None:
    """Rounds of kill -9 under load: what the reader gets is the log, whatever the moment was."""
    topic = create_topic(broker)
    numbers = Numbers(broker, topic)
    checked = Checked()
    dice = random.Random(5)

    def kill_and_start(seconds: float) -> None:
        time.sleep(seconds)
        broker.kill()
        broker.start()

    with attach(broker, topic) as reader, streaming(numbers):
        for _ in range(5):
            read_to(reader, checked, checked.count + dice.randrange(200, 1500))
            moment = dice.random() * 0.1
            with background(lambda moment=moment: kill_and_start(moment)):
                with pytest.raises((BrokerGone, BrokerRestarted)):
                    checked.take(reader.records(wait=20))
                reader.reattach(timeout=20)
    read = checked.count
    with attach(broker, topic) as reader:
        whole = Checked()
        read_to(reader, whole, len(numbers.acknowledged))
        assert list(reader.records(wait=0.05)) == []
    assert numbers.acknowledged == {number: number for number in range(whole.count)}
    assert 1000 < read <= whole.count


def test_memory_lost_with_the_broker_is_noticed_and_new_records_are_read(broker: BrokerProcess) -> None:
    topic = create_topic(broker)
    numbers = Numbers(broker, topic)
    numbers.send(500)
    numbers.flush()
    with attach(broker, topic) as reader:
        checked = Checked()
        read_to(reader, checked, 500)
        broker.kill()
        broker.lose_memory()
        broker.start()
        with pytest.raises(BrokerGone):
            checked.take(reader.records(wait=10))
        reader.reattach(timeout=10)
        numbers.send(10)
        numbers.flush()
        # Offsets go on above all that a reader may have seen; whatever fills the gap has no records.
        new = [
            (int(record.key or b""), record.offset) for _, record in itertools.islice(reader.records(), 10)
        ]
        assert new == [(number, numbers.acknowledged[number]) for number in range(500, 510)]


def test_a_segment_recycled_under_a_slow_reader(tmp_path: Path) -> None:
    """Little memory, a fast producer, readers that dawdle: right data or NotInMemory, nothing else."""
    with BrokerProcess(tmp_path / "broker", memory="2MiB") as broker:
        broker.start()
        topic = create_topic(broker)
        numbers = Numbers(broker, topic, size=1000)
        interrupted = 0
        read = 0
        with attach(broker, topic) as reader, streaming(numbers):
            (place,) = reader.positions
            deadline = time.monotonic() + 20
            while (interrupted < 3 or read < 1500) and time.monotonic() < deadline:
                try:
                    for _, record in reader.records(wait=0.1):
                        assert int(record.value.rstrip(b".")) == record.offset  # type: ignore[union-attr]
                        read += 1
                        if read % 400 == 0:
                            stalled = len(numbers.acknowledged)
                            eventually(lambda stalled=stalled: len(numbers.acknowledged) > stalled + 3000)
                except NotInMemory as error:
                    interrupted += 1
                    reader.seek(place, error.offset + reader.lag[place])
        assert interrupted >= 3
        assert read >= 1500


def test_what_is_lent_in_place_stays_or_is_reported(tmp_path: Path) -> None:
    """A pinned batch keeps its bytes while the log goes on over it, or the reader is told."""
    with BrokerProcess(tmp_path / "broker", memory="2MiB") as broker:
        broker.start()
        topic = create_topic(broker)
        numbers = Numbers(broker, topic, size=1000)
        numbers.send(20)
        numbers.flush()
        reader = attach(broker, topic, Edge.EARLIEST)
        lent = next(reader.batches())
        before = bytes(lent.data)
        numbers.send(5000)  # 5 MB through 2 MB
        numbers.flush()
        place = lent.place
        directory = layout.partition_dir(broker.memory_dir, place.topic_id, place.partition)
        eventually(lambda: not (directory / layout.segment_name(0)).exists())
        assert bytes(lent.data) == before
        reader.close()


_SLEEPER = """
import sys, time
from penstock.shm.places import Edge
from penstock.shm.reader import LogReader
from penstock.shm.subscribe import subscribe
reader = LogReader.of(subscribe(sys.argv[1], {sys.argv[2]: None}), Edge.EARLIEST, label="sleeper")
batch = next(reader.batches())
print("pinned", flush=True)
sys.stdin.read()
"""


def test_s8_a_killed_reader_does_not_hold_memory(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker", memory="2MiB") as broker:
        broker.start()
        topic = create_topic(broker)
        numbers = Numbers(broker, topic, size=1000)
        numbers.send(20)
        numbers.flush()
        cursors = broker.memory_dir / layout.CURSOR_DIR
        child = subprocess.Popen(
            [sys.executable, "-c", _SLEEPER, broker.address, topic],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "pinned\n"
            numbers.send(5000)
            numbers.flush()
            assert broker.process is not None
            eventually(lambda: _unlinked(broker.process.pid) > 0)
            assert len(list(cursors.glob("*.cur"))) == 1  # the living one stays
            child.send_signal(signal.SIGKILL)
            child.wait()
            eventually(lambda: list(cursors.glob("*.cur")) == [])
            numbers.send(100)
            numbers.flush()
            eventually(lambda: _unlinked(broker.process.pid) == 0)
        finally:
            child.kill()
            child.communicate()


def _unlinked(pid: int) -> int:
    """How many segments a process has mapped that have lost their name."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return sum(1 for line in maps.splitlines() if line.endswith(f"{layout.SEGMENT_SUFFIX} (deleted)"))


def test_following_costs_the_reader_little_while_nothing_comes(shared_broker: BrokerProcess) -> None:
    topic = create_topic(shared_broker)
    with attach(shared_broker, topic) as reader:
        before = os.times()
        assert list(reader.records(wait=1.0)) == []
        after = os.times()
        assert (after.user + after.system) - (before.user + before.system) < 0.3


def test_interruptions_tell_the_place_and_the_offset() -> None:
    error = Interrupted(Place("t", bytes(16), 3), 42, "why")
    assert str(error) == "t-3 at offset 42: why"
