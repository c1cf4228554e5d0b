"""Replication: what a backup costs its leader, and what it costs itself.

The paper's producer with acks=all on one broker, and on a leader with one backup: broker CPU per produce
request on each side, and throughput. Leader and backup have one CPU between them, as the single broker
has: the ratio of throughputs is that of CPU. The paper saw about half. The kernel's part of the leader's CPU
(a frame out, an acknowledgement in) is told apart; with more producers a frame carries more requests.

At pace `alike` both get as many requests per second, few enough for the pair. At `full` each gets what it
can take: a broker that never sleeps handles several requests per wake-up, one that waits for its backup does
not, and the difference looks like the backup's cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from penstock.bench.experiment import (
    Better,
    Experiment,
    Figures,
    Goal,
    Metric,
    Options,
    Parameter,
    Plot,
    Variant,
)
from penstock.bench.experiments.ingest import KEPT
from penstock.bench.load import Load, fill, run_load
from penstock.bench.pair import Pair
from penstock.bench.rig import Child, Rig
from penstock.bench.servers import PenstockServer, Server
from penstock.settings import parse_size

_TOPIC: Final = "replication"
_EASY: Final = 0.7
"""Of what the slower one can take."""


class Subject(Experiment):
    about = "broker CPU per request on leader and backup, and throughput, against no backup"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("chunk", "1KiB,128KiB", "Chunk sizes, one record batch each.", quick="16KiB"),
        Parameter("partitions", "8", "One chunk each, per request."),
        Parameter("producers", "2,8", "Connections, each with one request on its way.", quick="2"),
        Parameter("pace", "alike", "alike: as many requests for both; full: as many as each can take."),
        Parameter("memory", "256MiB", "Each broker's memory budget."),
    )
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("leader_cpu_us_per_request", "us", Better.LESS),
        Metric("leader_kernel_us_per_request", "us", Better.LESS),
        Metric("backup_cpu_us_per_request", "us", Better.LESS),
        Metric("records_per_second", "records/s", Better.MORE),
        Metric("latency_ms_p50", "ms", Better.LESS),
        Metric("latency_ms_p99", "ms", Better.LESS),
    )
    contenders = ("two", "one")
    baseline = "one"
    goals: ClassVar[tuple[Goal, ...]] = (Goal("leader_cpu_us_per_request", "two", 1.6, to="one"),)
    plots: ClassVar[tuple[Plot, ...]] = (
        Plot(
            ("leader_cpu_us_per_request", "backup_cpu_us_per_request", "latency_ms_p99"),
            along="chunk",
            panels="producers",
        ),
    )
    seconds = 3.0

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._servers: dict[str, Server] = {}
        self._leader: dict[str, Child] = {}
        self._taken: dict[str, float] = {}
        """Records per second that each took in the last warm-up."""

    def variants(self) -> Sequence[Variant]:
        return [
            {"pace": pace, "producers": producers, "chunk": chunk}
            for pace in self.options.texts("pace")
            for producers in self.options.texts("producers")
            for chunk in self.options.texts("chunk")
        ]

    def start(self, contender: str) -> None:
        budget = parse_size(self.options.text("memory"))
        partitions = self.options.number("partitions")
        server: Server
        if contender == "two":
            pair = Pair(self.rig, budget)
            pair.start(_TOPIC, partitions, KEPT)
            server = pair.server
        else:
            server = PenstockServer(self.rig, budget)
            server.start()
            server.create_topic(_TOPIC, partitions, KEPT)
        self._servers[contender] = server
        self._leader[contender] = server.processes[0]
        fill(server, self._load({"producers": "2", "chunk": "64KiB"}), int(budget * 2.2))

    def warm_up(self, contender: str, variant: Variant) -> None:
        report = run_load(self._servers[contender], self._load(variant), 1.0)
        self._taken[contender] = report["records_per_second"]

    def measure(self, contender: str, variant: Variant) -> Figures:
        processes = self._servers[contender].processes
        before = [process.cpu_seconds() for process in processes]
        kernel = processes[0].kernel_seconds()
        rate = _EASY * min(self._taken.values()) if variant["pace"] == "alike" else 0.0
        load = self._load(variant)._replace(rate=rate)
        report = run_load(self._servers[contender], load, self.options.seconds)
        spent = [p.cpu_seconds() - b for p, b in zip(processes, before, strict=True)]
        kernel = processes[0].kernel_seconds() - kernel
        each = [1e6 * seconds / report["requests"] for seconds in spent]
        return {
            "leader_cpu_us_per_request": each[0],
            "leader_kernel_us_per_request": 1e6 * kernel / report["requests"],
            **({"backup_cpu_us_per_request": each[1]} if len(each) > 1 else {}),
            "records_per_second": report["records_per_second"],
            "latency_ms_p50": report["latency_ms_p50"],
            "latency_ms_p99": report["latency_ms_p99"],
            "requests": report["requests"],
            "refused": report["refused"],
        }

    def _load(self, variant: Variant) -> Load:
        partitions = self.options.number("partitions")
        return Load(_TOPIC, partitions, variant["chunk"], int(variant["producers"]), acks="all")
