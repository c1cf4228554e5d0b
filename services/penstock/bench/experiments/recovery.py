"""Recovery: from kill -9 to the first answers, with gigabytes in memory and with none.

The clock starts with the new process. With no gigabytes it is the same program with nothing to bring back:
what it takes then is Python, or Java, and what they load; what it takes more otherwise is the log.

Apache Kafka's log lies in memory too, beside ours, so it gets no more than `--kafka-gigabytes`. It is
written anew before each kill: what Kafka has looked through once it doesn't look through again. A client
that is refused tries again at once, and the time counts.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final

from penstock.bench.experiment import (
    Better,
    CannotStart,
    Experiment,
    Figures,
    Goal,
    Metric,
    Options,
    Parameter,
    Variant,
)
from penstock.bench.load import Load, fill
from penstock.bench.puller import Puller
from penstock.bench.rig import ProcessFailed, Rig
from penstock.bench.servers import KafkaServer, PenstockServer
from penstock.load.chunks import ChunkRequest, make_chunk
from penstock.wire.errors import ErrorCode
from penstock.wire.records import Compression

_TOPIC: Final = "recovery"
_SLACK: Final = 256 << 20
_RESERVE: Final = 1.15
"""The broker keeps a part of its budget free, by evicting: all of the data must stay in memory."""
_ANSWER_SECONDS: Final = 60.0
_KAFKA_ROUNDS: Final = 2
"""A start of Kafka takes many times as long as one of ours."""
_LENGTH: Final = struct.Struct(">i")


class _Refused(Exception):
    """The broker answers, but not with an acknowledgement; the text says with what."""


class Subject(Experiment):
    about = "kill -9 to the first acknowledged produce, the first fetch and the ready line"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("gigabytes", "10,2,0", "How much is in memory when the broker is killed.", quick="1,0"),
        Parameter("kafka_gigabytes", "2", "The most that Apache Kafka's log gets."),
        Parameter("partitions", "8", "Of the topic."),
        Parameter("chunk", "16KiB", "Size of its record batches."),
    )
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("first_produce_seconds", "s", Better.LESS),
        Metric("first_fetch_seconds", "s", Better.LESS),
        Metric("ready_seconds", "s", Better.LESS),
        Metric("import_seconds", "s", Better.LESS),
        Metric("recovered_gigabytes", "GB", Better.MORE),
    )
    contenders = ("penstock", "kafka")
    baseline = "kafka"
    goals: ClassVar[tuple[Goal, ...]] = (
        Goal("first_produce_seconds", "penstock", 1.0),
        Goal("first_fetch_seconds", "penstock", 1.0),
    )
    repeat = 3
    quick_repeat = 3

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._servers: dict[str, PenstockServer] = {}
        self._written: dict[str, int] = {}
        self._kafka: KafkaServer | None = None
        self._rounds: Counter[str] = Counter()

    def variants(self) -> Sequence[Variant]:
        return [{"gigabytes": gigabytes} for gigabytes in self.options.texts("gigabytes")]

    def start(self, contender: str) -> None:
        if contender == KafkaServer.name:
            self._start_kafka()
            return
        for gigabytes in self.options.texts("gigabytes"):
            wanted = _bytes(gigabytes)
            server = PenstockServer(self.rig, int(wanted * _RESERVE) + _SLACK)
            server.start()
            server.create_topic(_TOPIC, self.options.number("partitions"), {})
            self._written[gigabytes] = fill(server, self._load(_TOPIC), wanted) if wanted else 0
            self._servers[gigabytes] = server
            self._produce(server, _TOPIC)  # so that a fetch finds something in the empty one too

    def _start_kafka(self) -> None:
        if self.options.quick and KafkaServer.name not in self.options.contenders:
            raise CannotStart("takes too long for a quick run")
        server = KafkaServer(self.rig)
        server.start()
        self._kafka = server

    def measure(self, contender: str, variant: Variant) -> Figures:
        if contender == KafkaServer.name:
            return self._measure_kafka(variant["gigabytes"])
        server = self._servers[variant["gigabytes"]]
        figures = self._come_back(server, _TOPIC)
        ready = server.process.wait_for_line("^ready:", _ANSWER_SECONDS)
        figures["broker_cpu_seconds"] = server.process.cpu_seconds()  # before anything else is on its CPU
        return {
            **figures,
            "ready_seconds": ready,
            "import_seconds": self._import_seconds(),
            "recovered_gigabytes": self._written[variant["gigabytes"]] / 1e9,
        }

    def _measure_kafka(self, gigabytes: str) -> Figures:
        self._rounds[gigabytes] += 1
        if float(gigabytes) > float(self.options.text("kafka_gigabytes")):
            return {}  # both logs would not fit into memory
        if self._rounds[gigabytes] > _KAFKA_ROUNDS:
            return {}  # it sits this round out
        server = self._kafka
        assert server is not None
        topic = f"{_TOPIC}-{gigabytes}-{self._rounds[gigabytes]}"
        server.create_topic(topic, self.options.number("partitions"), {})
        self._produce(server, topic)  # the new leaders are there when it was taken
        written = fill(server, self._load(topic), _bytes(gigabytes)) if _bytes(gigabytes) else 0
        figures = self._come_back(server, topic)
        figures["broker_cpu_seconds"] = server.process.cpu_seconds()
        _forget(server, topic)
        return {**figures, "recovered_gigabytes": written / 1e9}

    def _come_back(self, server: PenstockServer | KafkaServer, topic: str) -> Figures:
        server.process.kill()
        process = server.spawn()
        produced = self._produce(server, topic) - process.started
        return {
            "first_produce_seconds": produced,
            "first_fetch_seconds": _first_fetch(server, topic) - process.started,
        }

    def versions(self) -> dict[str, str]:
        return {} if self._kafka is None else {self._kafka.name: self._kafka.version}

    def _produce(self, server: PenstockServer | KafkaServer, topic: str) -> float:
        return _first_produce(server, topic, self.options.number("partitions"))

    def _load(self, topic: str) -> Load:
        return Load(topic, self.options.number("partitions"), self.options.text("chunk"))

    def _import_seconds(self) -> float:
        """A Python that only imports what the broker does, on the broker's CPU."""
        child = self.rig.spawn(
            "imports",
            [sys.executable, "-c", "import uvloop, penstock.cli.main, penstock.broker.server"],
            server=True,
        )
        child.finish(_ANSWER_SECONDS)
        return time.perf_counter() - child.started


def _bytes(gigabytes: str) -> int:
    return int(float(gigabytes) * 1e9)


def _first_produce(server: PenstockServer | KafkaServer, topic: str, partitions: int) -> float:
    """When a chunk for every partition was acknowledged."""
    chunk, records = make_chunk(1024, 100, Compression.NONE)
    request = ChunkRequest(topic, range(partitions), chunk, records, acks=1)
    deadline = time.perf_counter() + _ANSWER_SECONDS
    while True:
        try:
            return _ask(server, request)
        except (_Refused, OSError) as error:
            if not server.process.running or time.perf_counter() > deadline:
                printed = server.process.output[-1000:].strip()
                raise ProcessFailed(f"the broker did not come back: {error}; {printed}") from None
            time.sleep(0.001)


def _ask(server: PenstockServer | KafkaServer, request: ChunkRequest) -> float:
    """When it was acknowledged; as soon as somebody listens."""
    frame = request.stamped(1, time.time_ns() // 1_000_000)
    with socket.create_connection(("127.0.0.1", server.port), _ANSWER_SECONDS) as connection:
        connection.sendall(frame)
        answer = connection.makefile("rb")
        size = answer.read(_LENGTH.size)
        answered = time.perf_counter()
        if len(size) < _LENGTH.size:
            raise _Refused("it closed the connection")
        refused = request.first_error(bytearray(size + answer.read(_LENGTH.unpack(size)[0])), 0)
    if refused is not None:
        raise _Refused(f"partition {refused[0]} refused its chunk: {ErrorCode(refused[1]).name}")
    return answered


def _first_fetch(server: PenstockServer | KafkaServer, topic: str) -> float:
    """When records came out of partition 0, from its beginning."""
    puller = Puller(server.address, topic, {0: 0})
    pulled = puller.pull()
    answered = time.perf_counter()
    puller.close()
    if not pulled.records:
        raise ProcessFailed("the broker answered a fetch with nothing")
    return answered


def _forget(server: KafkaServer, topic: str) -> None:
    """Delete it and wait until its memory is free: there is none for two of them."""
    server.delete_topic(topic)
    deadline = time.monotonic() + _ANSWER_SECONDS
    while any(server.logs.glob(f"{topic}-*")):
        if time.monotonic() > deadline:
            raise ProcessFailed(f"Kafka did not remove {topic} within {_ANSWER_SECONDS:.0f} s")
        time.sleep(0.1)
