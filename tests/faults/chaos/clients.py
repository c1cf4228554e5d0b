"""The load on a cluster under faults: idempotent producers, readers by pull, by push and by group.

A process of its own, so that what the harness does doesn't hold it up: `python -m chaos.clients`. It
writes histories until its standard input says so, then flushes, lets every reader read to the end, and exits.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from chaos.history import History, decode, encode
from cluster import QUIET
from penstock.shm.idle import BackOff
from penstock.shm.places import Interrupted, NotInMemory, NotLocal
from penstock.shm.reader import LogReader
from penstock.shm.subscribe import SubscribeFailed, subscribe
from penstock.wire.batch import read_header
from penstock.wire.records import decode_records

KEYS: Final = 8
PATIENCE: Final = 90.0
"""Seconds for everybody to come to the end when all is well again."""
_ALL_IS_WELL: Final = {
    # What librdkafka tells its application for information while it goes on by itself.
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._RESOLVE,
    KafkaError._MAX_POLL_EXCEEDED,
}


class Writer(threading.Thread):
    """One producer, `rate` records a second over its keys; a key always goes to the same partition."""

    def __init__(
        self, number: int, bootstrap: str, topic: str, partitions: int, rate: float, out: Path
    ) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.left = 0
        self._number = number
        self._topic = topic
        self._partitions = partitions
        self._rate = rate
        self._history = History(out / f"producer-{number}.jsonl")
        self._sent = [0] * KEYS
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": 900_000,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "request.timeout.ms": 1500,
                "socket.timeout.ms": 1500,
                "error_cb": self._told,
                **QUIET,
            }
        )

    def run(self) -> None:
        chance = random.Random(self._number)
        started, count = time.monotonic(), 0
        while not self.stop.is_set():
            key = chance.randrange(KEYS)
            value = encode(self._number, key, self._sent[key], chance.randrange(300))
            try:
                self._producer.produce(
                    self._topic, value, str(key), key % self._partitions, on_delivery=self._delivered
                )
                self._sent[key] += 1
                count += 1
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                self._history.add("error", f"producer {self._number}", str(error))
                return
            self._producer.poll(0)
            ahead = started + count / self._rate - time.monotonic()
            if ahead > 0:
                self.stop.wait(min(ahead, 0.1))
        self.left = self._producer.flush(PATIENCE)
        for key, number in enumerate(self._sent):
            self._history.add("sent", self._number, key, number)
        if self.left:
            self._history.add("error", f"producer {self._number}", f"{self.left} records without an answer")
        self._history.close()

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert value is not None
        producer, key, number = decode(value)
        if error is not None:
            self._history.add("failed", producer, key, number, str(error))
            return
        offset = message.offset()  # a retry that was there already is acknowledged without one
        self._history.add(
            "acked", producer, message.partition(), -1 if offset is None else offset, key, number
        )

    def _told(self, error: KafkaError) -> None:
        if error.fatal() or error.code() not in _ALL_IS_WELL:
            self._history.add("error", f"producer {self._number}", str(error))


class Reader(threading.Thread):
    """What readers have in common: a position per partition, and an end to come to."""

    def __init__(self, name: str, bootstrap: str, topic: str, partitions: int, out: Path) -> None:
        super().__init__(daemon=True)
        self.name = name
        self.ends: dict[int, int] | None = None
        """Where the log ends, when nobody writes any more."""
        self.positions = dict.fromkeys(range(partitions), 0)
        self._addresses = bootstrap
        self._topic = topic
        self._history = History(out / f"{name}.jsonl")
        self._deadline = float("inf")

    def finish(self, ends: dict[int, int]) -> None:
        self._deadline = time.monotonic() + PATIENCE
        self.ends = ends

    def run(self) -> None:
        try:
            while not self._is_over():
                self.turn()
        except Exception as error:
            self._history.add("error", self.name, repr(error))
        for partition, offset in self.positions.items():
            self._history.add("end", self.name, partition, offset)
        self._history.close()

    def turn(self) -> None:
        raise NotImplementedError

    def _is_over(self) -> bool:
        if self.ends is None:
            return False
        there = all(at >= self.ends.get(partition, 0) for partition, at in self.positions.items())
        return there or time.monotonic() > self._deadline

    def _consumer(self, **options: Any) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._addresses,
                "group.id": self.name,
                "enable.auto.commit": False,
                # A reset of the position would hide a gap: it is an error instead.
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "topic.metadata.refresh.interval.ms": 5000,
                "socket.timeout.ms": 2000,
                "fetch.error.backoff.ms": 50,
                **QUIET,
                **options,
            }
        )

    def _take(self, messages: Iterable[Message]) -> int:
        """Write down what came; one event for a run of offsets in one epoch."""
        runs: dict[tuple[int, int], tuple[int, list[list[int]]]] = {}
        count = 0
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() not in _ALL_IS_WELL:
                    self._history.add("error", self.name, str(error))
                continue
            partition, offset, value = message.partition(), message.offset(), message.value()
            assert partition is not None
            assert offset is not None
            assert value is not None
            epoch = message.leader_epoch()
            key = (partition, -1 if epoch is None else epoch)
            first, records = runs.setdefault(key, (offset, []))
            if offset != first + len(records):
                self._write(key, *runs.pop(key))
                first, records = runs.setdefault(key, (offset, []))
            records.append(decode(value))
            count += 1
        for key, (first, records) in runs.items():
            self._write(key, first, records)
        return count

    def _write(self, key: tuple[int, int], first: int, records: list[list[int]]) -> None:
        self._history.add("read", self.name, key[0], first, key[1], records)
        self.positions[key[0]] = first + len(records)


class Puller(Reader):
    """Fetches every partition from the first record on, without a group."""

    _consumes: Consumer | None = None

    def turn(self) -> None:
        if self._consumes is None:
            self._consumes = self._consumer()
            self._consumes.assign([TopicPartition(self._topic, p, at) for p, at in self.positions.items()])
        self._take(self._consumes.consume(500, 0.2))


class Member(Reader):
    """A consumer group of one that commits as it goes, leaves, and joins again where it had committed."""

    STAY: Final = 12.0

    def turn(self) -> None:
        session = self._consumer(**{"session.timeout.ms": 6000, "auto.offset.reset": "earliest"})
        session.subscribe([self._topic], on_assign=self._assigned)
        stay = time.monotonic() + self.STAY
        committed: dict[int, int] = {}
        while time.monotonic() < stay and not self._is_over():
            if self._take(session.consume(500, 0.2)):
                self._commit(session, committed)
        with contextlib.suppress(KafkaException):
            session.close()

    def _assigned(self, session: Consumer, assigned: list[TopicPartition]) -> None:
        try:
            found = session.committed(assigned, timeout=20)
        except KafkaException:
            found = None  # no answer in time: nothing is known, the group finds its place itself
        for each in assigned:
            known = next((f.offset for f in found or () if f.partition == each.partition), None)
            if known is not None:
                self._history.add("resumed", self.name, each.partition, max(0, known))
                self._history.add("begin", self.name, each.partition, max(0, known))
                self.positions[each.partition] = each.offset = max(0, known)
        if found is not None:
            session.assign(assigned)

    def _commit(self, session: Consumer, committed: dict[int, int]) -> None:
        news = {p: at for p, at in self.positions.items() if committed.get(p) != at}
        for partition, offset in news.items():
            self._history.add("committing", self.name, partition, offset)
        with contextlib.suppress(KafkaException):  # not acknowledged: it may or may not count
            done = session.commit(
                offsets=[TopicPartition(self._topic, p, at) for p, at in news.items()], asynchronous=False
            )
            for each in done or ():
                if each.error is None:
                    self._history.add("committed", self.name, each.partition, each.offset)
                    committed[each.partition] = each.offset


class Pusher(Reader):
    """Reads one partition in the memory of whoever leads it; pulls what is no longer in memory."""

    def __init__(self, partition: int, bootstrap: str, topic: str, out: Path) -> None:
        super().__init__(f"push-{partition}", bootstrap, topic, 0, out)
        self.positions = {partition: 0}
        self._partition = partition
        self._reader: LogReader | None = None
        self._brokers = bootstrap.split(",")
        self.pulled = 0

    def turn(self) -> None:
        try:
            reader = self._reader or self._find()
            if reader is None:
                time.sleep(0.02)
                return
            for found in reader.batches(wait=0.2, copy=True):
                assert isinstance(found.data, bytes)
                header = read_header(found.data)
                records = [r for r in decode_records(found.data) if r.offset >= found.start_offset]
                values = [decode(bytes(record.value or b"")) for record in records]
                self._write((self._partition, header.leader_epoch), found.start_offset, values)
        except NotInMemory:
            self._drop()
            self._pull()
        except Interrupted:
            self._drop()

    def _find(self) -> LogReader | None:
        offset = self.positions[self._partition]
        for broker in self._brokers:
            with contextlib.suppress(SubscribeFailed, NotLocal, OSError):
                subscription = subscribe(broker, {self._topic: [self._partition]}, timeout=1.0)
                idle = BackOff(spins=1, yields=1, shortest=0.002, longest=0.01)
                try:
                    self._reader = LogReader.of(
                        subscription, dict.fromkeys(subscription.places, offset), idle=idle
                    )
                except NotInMemory:
                    raise
                except Interrupted:
                    continue  # not the leader, or no longer
                return self._reader
        return None

    def _drop(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with contextlib.suppress(Interrupted):
                reader.close()

    def _pull(self) -> None:
        consumer = self._consumer()
        consumer.assign([TopicPartition(self._topic, self._partition, self.positions[self._partition])])
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline and not self._is_over():
            self.pulled += self._take(consumer.consume(500, 0.2))
        consumer.close()


def ends_of(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    """High watermarks, when nobody writes any more; asks until all are told."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", **QUIET})
    found: dict[int, int] = {}
    deadline = time.monotonic() + PATIENCE
    while len(found) < partitions and time.monotonic() < deadline:
        for partition in set(range(partitions)) - found.keys():
            with contextlib.suppress(KafkaException):
                answer = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=5)
                if answer is not None:
                    found[partition] = answer[1]
    consumer.close()
    return found


def read_all(name: str, bootstrap: str, topic: str, partitions: int, out: Path) -> None:
    """The whole log, once more."""
    reader = Puller(name, bootstrap, topic, partitions, out)
    reader.finish(ends_of(bootstrap, topic, partitions))
    reader.run()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True)
    told = parser.parse_args()
    where = (told.bootstrap, told.topic, told.partitions)
    writers = [Writer(number, *where, told.rate / 2, told.out) for number in range(2)]
    readers: list[Reader] = [Puller("pull", *where, told.out), Member("group", *where, told.out)]
    readers += [Pusher(p, told.bootstrap, told.topic, told.out) for p in range(told.partitions)]
    for thread in (*writers, *readers):
        thread.start()
    sys.stdin.readline()
    for writer in writers:
        writer.stop.set()
    for writer in writers:
        writer.join()
    ends = ends_of(*where)
    for reader in readers:
        reader.finish(ends)
    for reader in readers:
        reader.join(PATIENCE + 30)
    pulled = sum(reader.pulled for reader in readers if isinstance(reader, Pusher))
    print(f"records that push readers had to pull: {pulled}", flush=True)


if __name__ == "__main__":
    main()
