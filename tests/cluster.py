"""A cluster of real brokers on a real etcd, load on it, and the checker of what became of the load."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import threading
import time
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from etcd import EtcdProcess
from harness import BrokerProcess, eventually, free_port, promised

QUIET = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


class Ground:
    """Where the machines of a cluster stand; here, all of them on this one's loopback."""

    def host(self, name: str) -> str:
        return "127.0.0.1"

    def within(self, name: str) -> tuple[str, ...]:
        """The command that runs another one on this machine."""
        return ()

    def environment(self, name: str) -> dict[str, str]:
        return {}

    def door(self, sender: str | None, receiver: str, address: str) -> str:
        """Where `sender` (None: any broker) finds what listens at `address` on the machine `receiver`."""
        return address


class Cluster:
    def __init__(
        self,
        directory: Path,
        brokers: int = 2,
        *,
        environment: dict[str, str] | None = None,
        ground: Ground | None = None,
        memory: str = "128MiB",
    ) -> None:
        ground = ground or Ground()
        self.etcd = EtcdProcess(directory / "etcd", ground.host("etcd"), ground.within("etcd"))
        self.brokers: dict[int, BrokerProcess] = {}
        self._doors: list[str] = []
        for number in range(1, brokers + 1):
            name = f"broker-{number}"
            etcd = ground.door(name, "etcd", f"{self.etcd.host}:{self.etcd.port}")
            replication = f"{ground.host(name)}:{free_port()}"
            broker = self.brokers[number] = BrokerProcess(
                directory / name,
                memory=memory,
                options=(
                    *("--broker-id", str(number), "--cluster", f"http://{etcd}"),
                    *("--replication-listen", replication),
                ),
                environment={
                    "PENSTOCK_DEFAULT_REPLICATION": str(min(brokers, 3)),
                    "PENSTOCK_OFFSETS_PARTITIONS": "4",
                    "PENSTOCK_REPLICATION_ADVERTISE": ground.door(None, name, replication),
                    **ground.environment(name),
                    **(environment or {}),
                },
                host=ground.host(name),
                within=ground.within(name),
            )
            self._doors.append(ground.door("clients", name, broker.address))
            broker.options += ("--advertise", self._doors[-1])

    @property
    def bootstrap(self) -> str:
        return ",".join(self._doors)

    def start(self) -> Self:
        try:
            self.etcd.start()
            for broker in self.brokers.values():
                broker.launch()
            for broker in self.brokers.values():
                broker.ready()
        except BaseException:
            self.close()  # nobody has entered the block yet that would
            raise
        return self

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})

    def create(
        self, topic: str, partitions: int, replication: int, configs: dict[str, str] | None = None
    ) -> None:
        wanted = NewTopic(topic, partitions, replication_factor=replication, config=configs or {})
        admin = self.admin()

        def created() -> bool:
            """A broker that starts on a busy machine can stand still for so long that its lease is over."""
            try:
                admin.create_topics([wanted])[topic].result(30)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR:
                    raise
                return False
            return True

        eventually(created, 60, 0.2)
        self.in_sync(topic, replication)

    def partitions(self, topic: str) -> dict[int, Any]:
        """Per partition what etcd says: leader, epoch, in_sync, ..."""
        found: dict[int, Any] = {}
        topic_id = self._value(f"/topics/{topic}")["id"].replace("-", "")
        for index in range(len(self._value(f"/topics/{topic}")["partitions"])):
            with contextlib.suppress(KeyError):
                found[index] = self._value(f"/partitions/{topic_id}/{index}")
        return found

    def _value(self, key: str) -> Any:
        import base64

        body = json.dumps({"key": base64.b64encode(f"/penstock{key}".encode()).decode()}).encode()
        request = urllib.request.Request(f"{self.etcd.endpoint}/v3/kv/range", body)
        with urllib.request.urlopen(request, timeout=5) as answer:
            found = json.loads(answer.read()).get("kvs")
        if not found:
            raise KeyError(key)
        return json.loads(base64.b64decode(found[0]["value"]))

    def in_sync(self, topic: str, count: int, timeout: float = 60) -> None:
        """Wait until there is such a topic, and every partition of it has `count` replicas in sync."""

        def all_in_sync() -> bool:
            with contextlib.suppress(KeyError):
                wanted = len(self._value(f"/topics/{topic}")["partitions"])
                found = self.partitions(topic)
                return len(found) == wanted and all(len(one["in_sync"]) == count for one in found.values())
            return False

        eventually(all_in_sync, timeout, 0.1)

    def leader(self, topic: str, partition: int) -> int:
        leader: int = self.partitions(topic)[partition]["leader"]
        return leader

    def signal(self, broker: int, number: signal.Signals) -> None:
        process = self.brokers[broker].process
        assert process is not None
        process.send_signal(number)

    def logs(self) -> str:
        return "\n".join(
            f"--- broker {n}\n{b.log_text()[-6000:] if b.log_path.exists() else ''}"
            for n, b in self.brokers.items()
        )

    def close(self) -> None:
        for broker in self.brokers.values():
            if broker.process is not None and broker.process.poll() is None:
                broker.process.send_signal(signal.SIGCONT)
            broker.close()
        self.etcd.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Load:
    """An idempotent acks=all producer on a thread, with the history of what was acknowledged."""

    rest = 0.001
    """Seconds of sleep after every twenty records."""

    def __init__(self, cluster: Cluster, topic: str, partitions: int, *, timeout_ms: int = 3000) -> None:
        self.topic = topic
        self.partitions = partitions
        self.acknowledged: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.times: dict[int, list[float]] = {partition: [] for partition in range(partitions)}
        self.failed: list[str] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                # A client learns that its leader hangs, and not only takes its time, from this alone.
                "request.timeout.ms": timeout_ms,
                "socket.timeout.ms": timeout_ms,
                **QUIET,
            }
        )
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            value = b"%010d" % number + b"." * (number % 200)
            try:
                self._producer.produce(
                    self.topic, value, partition=number % self.partitions, on_delivery=self._delivered
                )
                number += 1
            except BufferError:
                self._producer.poll(0.05)
            self._producer.poll(0)
            if number % 20 == 0:
                time.sleep(self.rest)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failed.append(str(error))
            return
        offset, value = message.offset(), message.value()
        assert offset is not None
        assert value is not None
        self.acknowledged[message.partition()].append((offset, value))
        self.times[message.partition()].append(time.monotonic())

    @property
    def count(self) -> int:
        return sum(map(len, self.times.values()))

    def start(self) -> Self:
        self._thread.start()
        return self

    def progress(self, more: int, timeout: float = 30) -> None:
        before = self.count
        eventually(lambda: self.count >= before + more or self.failed, timeout)
        assert not self.failed, self.failed[:3]

    def longest_pause(self, since: float) -> float:
        """Of any partition, from then until now."""
        return longest_pause(self.times, since, time.monotonic())

    def finish(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert self._producer.flush(60) == 0
        assert self.failed == []


class Follower:
    """A consumer in a group, on a thread: what it read and when, and every error that it was told."""

    def __init__(self, cluster: Cluster, topic: str, group: str = "follower") -> None:
        self.read: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.times: dict[int, list[float]] = defaultdict(list)
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 50,
                **QUIET,
            }
        )
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            if (error := message.error()) is not None:
                self.errors.append(str(error))
                continue
            offset, value = message.offset(), message.value()
            assert offset is not None
            assert value is not None
            self.read[message.partition()].append((offset, value))
            self.times[message.partition()].append(time.monotonic())
        self._consumer.close()

    @property
    def count(self) -> int:
        return sum(map(len, self.read.values()))

    def longest_pause(self, since: float) -> float:
        """Of any partition, from then until now."""
        return longest_pause(self.times, since, time.monotonic())

    def finish(self, found: dict[int, list[tuple[int, bytes]]]) -> None:
        """Read what the log has, in order, none twice, and hear of no error."""
        eventually(lambda: self.count >= sum(map(len, found.values())), 60)
        self._stop.set()
        self._thread.join(30)
        assert self.errors == []
        for partition, records in found.items():
            same = self.read[partition] == records
            promised(same, f"partition {partition}: a consumer read a gap, one twice, or what is not there")


def longest_pause(times: Mapping[int, list[float]], since: float, until: float) -> float:
    """The longest time in which a partition, any of them, had nothing. It counts from the last before `since`
    on, and up to `until` if it is not over by then."""
    longest = 0.0
    for each in times.values():
        before = max((moment for moment in each if moment <= since), default=since)
        within = [before, *(moment for moment in each if since < moment < until), until]
        longest = max(longest, *(later - earlier for earlier, later in itertools.pairwise(within)))
    return longest


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[int, list[tuple[int, bytes]]]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < partitions:
        message = consumer.poll(1)
        assert time.monotonic() < deadline, f"partitions {set(range(partitions)) - ended} don't end"
        if message is None:
            continue
        error = message.error()
        if error is None:
            found[message.partition()].append((message.offset(), message.value()))
        elif error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition())
    consumer.close()
    return found


def check(load: Load, found: dict[int, list[tuple[int, bytes]]]) -> int:
    """Every acknowledged record is there exactly once, in order, at the offset it was acknowledged with.

    The log may have more: records whose acknowledgement was lost with a leader and that were sent again
    are still there once, because the producer is idempotent.
    """
    total = 0
    for partition in range(load.partitions):
        sent = load.acknowledged[partition]
        values = [value for _, value in found[partition]]
        there = set(values)
        promised(len(there) == len(values), f"partition {partition} has a record twice")
        promised(values == sorted(values), f"partition {partition} is out of order")
        by_offset = dict(found[partition])
        lost = [(offset, value[:10]) for offset, value in sent if value not in there]
        promised(not lost, f"partition {partition} lost {len(lost)}: {lost[:5]}")
        moved = [entry for entry in sent if entry[0] >= 0 and by_offset.get(entry[0]) != entry[1]]
        promised(not moved, f"partition {partition}: acknowledged at another offset: {moved[:5]}")
        total += len(sent)
    return total


@contextlib.contextmanager
def running(cluster: Cluster, load: Load) -> Iterator[Load]:
    """Load for the length of a block; logs in the failure if there is one."""
    load.start()
    try:
        yield load
        load.finish()
    except BaseException as error:
        error.add_note(cluster.logs())
        raise
