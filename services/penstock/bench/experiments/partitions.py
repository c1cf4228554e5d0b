"""Many partitions: broker CPU per record with 1, 100 and 1,000 of them, and the memory that they take.

Requests carry the same number of bytes whatever the number of partitions: one chunk with all of it, or
one chunk for each of a connection's own partitions. Memory is what the process has resident beyond the
shared log: anonymous pages and mapped files, libraries included.

Apache Kafka gets the same requests, to one, a hundred and a thousand partitions of its own. Its memory is
not told: a JVM takes the heap it is given. Its segments are as large as memory allows, since a new one is
dear for it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from penstock.bench import servers
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
from penstock.bench.rig import Child, ProcessFailed, Rig
from penstock.bench.servers import KafkaServer, PenstockServer, Server
from penstock.bench.spread import shares
from penstock.bench.warming import until_steady
from penstock.settings import parse_size

_CONFIGS: Final = {"segment.bytes": str(1 << 20), "retention.bytes": str(2 << 20)}
_WARM_BYTES: Final = 3 << 20
_LATE: Final = 0.8
"""The share of a sample after which memory is looked at: the process's own start is in it too."""
_GRACE: Final = 120.0
_KAFKA_LOG: Final = 1 << 30
_KAFKA_SEGMENTS: Final = (2 << 20, 64 << 20)
"""The least and the most that is a segment of Kafka's, and all that it keeps of a partition."""
_LEADERS_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 2.0
_STEADY: Final = 0.07
_MB: Final = 1e6


class Subject(Experiment):
    about = "broker CPU per record at 1, 100 and 1,000 partitions, and memory with 200 connections"
    parameters = (
        Parameter("connections", "200", "Producers; at most one per partition, two at least."),
        Parameter("request", "80KiB", "Bytes of a request, divided among a connection's partitions."),
        Parameter("memory", "3GiB", "The broker's memory budget."),
    )
    metrics = (
        Metric("cpu_us_per_record", "us", Better.LESS),
        Metric("cpu_us_per_request", "us", Better.LESS),
        Metric("records_per_second", "records/s", Better.MORE),
        Metric("own_memory_mb", "MB", Better.LESS),
        Metric("anonymous_mb", "MB", Better.LESS),
    )
    contenders = ("1", "100", "1000", "kafka 1", "kafka 100", "kafka 1000")
    baseline = "1"
    goals = (
        Goal("cpu_us_per_record", "100", 1.5, to="1"),
        Goal("cpu_us_per_record", "1000", 1.5, to="1"),
        Goal("own_memory_mb", "1000", 150),
    )
    seconds = 4.0
    repeat = 2
    in_quick_run = False

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._servers: dict[str, Server | CannotStart] = {}
        self._warm: set[str] = set()

    def variants(self) -> Sequence[Variant]:
        return [{"request": self.options.text("request")}]

    def start(self, contender: str) -> None:
        name, partitions = _split(contender)
        if name not in self._servers:
            server = servers.make(name, self.rig, parse_size(self.options.text("memory")))
            try:
                server.start()
                self._servers[name] = server
            except CannotStart as error:
                self._servers[name] = error
        found = self._servers[name]
        if isinstance(found, CannotStart):
            raise found
        found.create_topic(
            _topic(contender),
            partitions,
            _kafka_configs(partitions) if name == KafkaServer.name else _CONFIGS,
        )

    def warm_up(self, contender: str, variant: Variant) -> None:
        """Ours until each partition has been round its segments, Kafka's until its JVM has compiled."""
        name, partitions = _split(contender)
        if name == KafkaServer.name:
            self._wait_for_leaders(contender)
            least = 2 if name in self._warm else 4
            self._warm.add(name)
            until_steady(lambda: self._look(contender), _STEADY, least=least, most=2 * least)
            return
        written, wanted = 0, partitions * _WARM_BYTES
        while written < wanted:
            written += self._load(contender, self.options.seconds).finish()["bytes"]

    def _wait_for_leaders(self, contender: str) -> None:
        """Kafka says that a topic is made before all of its partitions take records."""
        deadline = time.monotonic() + _LEADERS_SECONDS
        while True:
            try:
                self._load(contender, 0.1).finish()
                return
            except ProcessFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _look(self, contender: str) -> float:
        process = self._server(contender).process
        before = process.cpu_seconds()
        report = self._load(contender, _LOOK_SECONDS).finish()
        return (process.cpu_seconds() - before) / float(report["records"])

    def measure(self, contender: str, variant: Variant) -> Figures:
        server = self._server(contender)
        process = server.process
        before = process.cpu_seconds()
        load = self._load(contender, self.options.seconds)
        time.sleep(self.options.seconds * _LATE)
        memory = process.memory()  # while all of them are connected
        report = load.finish()
        spent = process.cpu_seconds() - before
        figures = {
            "cpu_us_per_record": 1e6 * spent / report["records"],
            "cpu_us_per_request": 1e6 * spent / report["requests"],
            "records_per_second": report["records"] / report["seconds"],
            "connections": report["connections"],
            "requests": report["requests"],
        }
        if isinstance(server, PenstockServer):
            figures["own_memory_mb"] = memory.own / _MB
            figures["anonymous_mb"] = memory.anonymous / _MB
            figures["shared_memory_mb"] = memory.shared / _MB
        return figures

    def versions(self) -> dict[str, str]:
        return {each.name: each.version for each in self._servers.values() if isinstance(each, KafkaServer)}

    def _server(self, contender: str) -> Server:
        found = self._servers[_split(contender)[0]]
        assert isinstance(found, Server)
        return found

    def _load(self, contender: str, seconds: float) -> _Running:
        _, partitions = _split(contender)
        connections = max(2, min(partitions, self.options.number("connections")))
        chunk = parse_size(self.options.text("request")) // len(shares(partitions, connections)[0])
        numbers = map(str, (partitions, connections, chunk, seconds))
        address = self._server(contender).address
        command = [sys.executable, "-m", "penstock.bench.spread", address, _topic(contender)]
        return _Running(self.rig.spawn("spread", [*command, *numbers], server=False), seconds)


class _Running(NamedTuple):
    process: Child
    seconds: float

    def finish(self) -> Any:
        return json.loads(self.process.finish(self.seconds + _GRACE))


def _split(contender: str) -> tuple[str, int]:
    """Whose broker, and how many partitions."""
    name, _, partitions = contender.rpartition(" ")
    return name or PenstockServer.name, int(partitions)


def _kafka_configs(partitions: int) -> dict[str, str]:
    least, most = _KAFKA_SEGMENTS
    size = str(min(most, max(least, _KAFKA_LOG // partitions)))
    return {"segment.bytes": size, "retention.bytes": size}


def _topic(contender: str) -> str:
    return f"of-{_split(contender)[1]}"
