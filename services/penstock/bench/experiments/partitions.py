"""Many partitions: broker CPU per record with 1, 100 and 1,000 of them, and the memory that they take.

Requests carry the same number of bytes whatever the number of partitions: one chunk with all of it, or
one chunk for each of a connection's own partitions. Memory is what the process has resident beyond the
shared log: anonymous pages and mapped files, libraries included.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from penstock.bench.experiment import Better, Experiment, Figures, Goal, Metric, Options, Parameter, Variant
from penstock.bench.rig import Child, Rig
from penstock.bench.servers import PenstockServer
from penstock.bench.spread import shares
from penstock.settings import parse_size

_CONFIGS: Final = {"segment.bytes": str(1 << 20), "retention.bytes": str(2 << 20)}
_WARM_BYTES: Final = 3 << 20
_LATE: Final = 0.8
"""The share of a sample after which memory is looked at: the process's own start is in it too."""
_GRACE: Final = 120.0
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
    contenders = ("1", "100", "1000")
    baseline = "1"
    goals = (
        Goal("cpu_us_per_record", "100", 1.5, to="1"),
        Goal("cpu_us_per_record", "1000", 1.5, to="1"),
        Goal("own_memory_mb", "1000", 150),
    )
    seconds = 5.0
    in_quick_run = False

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._server: PenstockServer | None = None

    def variants(self) -> Sequence[Variant]:
        return [{"request": self.options.text("request")}]

    def start(self, contender: str) -> None:
        if self._server is None:
            self._server = PenstockServer(self.rig, parse_size(self.options.text("memory")))
            self._server.start()
        self._server.create_topic(_topic(contender), int(contender), _CONFIGS)

    def warm_up(self, contender: str, variant: Variant) -> None:
        """Until each partition has been round its segments."""
        written, wanted = 0, int(contender) * _WARM_BYTES
        while written < wanted:
            written += self._load(contender).finish()["bytes"]

    def measure(self, contender: str, variant: Variant) -> Figures:
        assert self._server is not None
        process = self._server.process
        before = process.cpu_seconds()
        load = self._load(contender)
        time.sleep(self.options.seconds * _LATE)
        memory = process.memory()  # while all of them are connected
        report = load.finish()
        spent = process.cpu_seconds() - before
        return {
            "cpu_us_per_record": 1e6 * spent / report["records"],
            "cpu_us_per_request": 1e6 * spent / report["requests"],
            "records_per_second": report["records"] / report["seconds"],
            "own_memory_mb": memory.own / _MB,
            "anonymous_mb": memory.anonymous / _MB,
            "shared_memory_mb": memory.shared / _MB,
            "connections": report["connections"],
            "requests": report["requests"],
        }

    def _load(self, contender: str) -> _Running:
        assert self._server is not None
        partitions = int(contender)
        connections = max(2, min(partitions, self.options.number("connections")))
        chunk = parse_size(self.options.text("request")) // len(shares(partitions, connections)[0])
        numbers = map(str, (partitions, connections, chunk, self.options.seconds))
        command = [sys.executable, "-m", "penstock.bench.spread", self._server.address, _topic(contender)]
        return _Running(self.rig.spawn("spread", [*command, *numbers], server=False), self.options.seconds)


class _Running(NamedTuple):
    process: Child
    seconds: float

    def finish(self) -> Any:
        return json.loads(self.process.finish(self.seconds + _GRACE))


def _topic(contender: str) -> str:
    return f"of-{contender}"
