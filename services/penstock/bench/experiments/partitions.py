"""Many partitions: broker CPU per record with 1, 100 and 1,000 of them, and the memory that they take.

Requests carry the same number of bytes whatever the number of partitions: one chunk with all of it, or
one chunk for each of a connection's own partitions. Memory is what the process has resident beyond the
shared log: anonymous pages and mapped files, libraries included.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

from penstock.bench.experiment import Better, Experiment, Figures, Goal, Metric, Parameter, Variant
from penstock.bench.servers import PenstockServer
from penstock.bench.spread import shares
from penstock.settings import parse_size

_CONFIGS: Final = {"segment.bytes": str(1 << 20), "retention.bytes": str(2 << 20)}
_GRACE: Final = 120.0
_MB: Final = 1e6


class Subject(Experiment):
    about = "broker CPU per record at 1, 100 and 1,000 partitions, and memory with 200 connections"
    parameters = (
        Parameter("partitions", "1,100,1000", "How many, each a topic of its own."),
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
    contenders = ("penstock",)
    goals = (Goal("own_memory_mb", "penstock", 150, within={"partitions": "1000"}),)
    seconds = 5.0

    def variants(self) -> Sequence[Variant]:
        return [{"partitions": count} for count in self.options.texts("partitions")]

    def start(self, contender: str) -> None:
        self._server = PenstockServer(self.rig, parse_size(self.options.text("memory")))
        self._server.start()
        for variant in self.variants():
            self._server.create_topic(_topic(variant), int(variant["partitions"]), _CONFIGS)

    def warm_up(self, contender: str, variant: Variant) -> None:
        """Until each partition has been round its segments."""
        written, wanted = 0, int(variant["partitions"]) * (3 << 20)
        while written < wanted:
            written += self._load(variant, self.options.seconds)["bytes"]

    def measure(self, contender: str, variant: Variant) -> Figures:
        process = self._server.process
        before = process.cpu_seconds()
        report = self._load(variant, self.options.seconds)
        spent = process.cpu_seconds() - before
        memory = process.memory()
        return {
            "cpu_us_per_record": 1e6 * spent / report["records"],
            "cpu_us_per_request": 1e6 * spent / report["requests"],
            "records_per_second": report["records"] / report["seconds"],
            "own_memory_mb": memory.own / _MB,
            "anonymous_mb": memory.anonymous / _MB,
            "shared_memory_mb": memory.shared / _MB,
            "requests": report["requests"],
        }

    def _load(self, variant: Variant, seconds: float) -> Any:
        partitions = int(variant["partitions"])
        connections = max(2, min(partitions, self.options.number("connections")))
        chunk = parse_size(self.options.text("request")) // len(shares(partitions, connections)[0])
        numbers = map(str, (partitions, connections, chunk, seconds))
        command = [sys.executable, "-m", "penstock.bench.spread", self._server.address, _topic(variant)]
        return self.rig.run_json("spread", [*command, *numbers], seconds + _GRACE)


def _topic(variant: Variant) -> str:
    return f"of-{variant['partitions']}"
