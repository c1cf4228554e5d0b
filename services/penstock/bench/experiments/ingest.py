"""Ingestion: what a produce request of one chunk per partition costs the broker, ours and Apache Kafka's.

The paper's producer drives both, over the same protocol. Steady state: our memory budget and Kafka's log
are small enough to go round several times before anything is measured (fresh pages cost six times as
much as recycled ones on a virtual machine), and both keep the same bytes of each partition. With two replicas
there are two brokers, which share one CPU: one leads every partition, the other is its backup. What they take
is told apart and added up. `leader_cost`, of ours only, is the leader's CPU per request over that of a broker
without a backup that gets as many requests per second; `leader_cost_at_full_speed` over that of one that goes
as fast as it can, and so wakes up once for several requests (`bench replication` has more about it).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import ClassVar, Final

from penstock.bench import replicas
from penstock.bench.experiment import (
    Better,
    CannotStart,
    Experiment,
    Figures,
    Goal,
    Metric,
    Options,
    Parameter,
    Plot,
    Sample,
    Variant,
)
from penstock.bench.load import Load, fill, measured_load
from penstock.bench.replicas import Replicated
from penstock.bench.rig import ProcessFailed, Rig
from penstock.bench.servers import Server
from penstock.bench.warming import until_steady
from penstock.settings import parse_size

TOPIC: Final = "ingest"
_WARM_CHUNK: Final = "64KiB"
_TURNS: Final = 2.2
"""How often the budget is written before the first sample."""
_STEADY: Final = 0.07
_LEAST_WARM_UPS: Final = 6
"""Of Kafka's first chunk size: while a JVM gets a little faster with each look, two in a row agree too."""
_MOST_WARM_UPS: Final = 9
KEPT: Final = {"retention.bytes": str(64 << 20), "max.message.bytes": str(4 << 20)}
_KAFKA_SEGMENT: Final = {"segment.bytes": str(64 << 20)}
"""Ours stay at their default, 16 MiB; Kafka's 1 GiB would outlive the run, and rolling is dear for it."""


class Subject(Experiment):
    about = "records/s, latency and broker CPU per request by chunk size, against Apache Kafka"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(
            "chunk",
            "1KiB,4KiB,16KiB,128KiB",
            "Chunk sizes, one record batch each.",
            quick="1KiB,16KiB,128KiB",
        ),
        Parameter("partitions", "8", "One chunk each, per request."),
        Parameter("producers", "2", "Connections, each with one request on its way."),
        Parameter(
            "replication", "1,2", "Replicas of each chunk; with two, producers wait for both.", quick="1"
        ),
        Parameter("memory", "512MiB", "Our broker's memory budget.", quick="256MiB"),
    )
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("cpu_us_per_request", "us", Better.LESS),
        Metric("leader_cpu_us_per_request", "us", Better.LESS),
        Metric("backup_cpu_us_per_request", "us", Better.LESS),
        Metric("leader_cost", "of one replica's", Better.LESS),
        Metric("leader_cost_at_full_speed", "of one replica's", Better.LESS),
        Metric("records_per_second", "records/s", Better.MORE),
        Metric("megabytes_per_second", "MB/s", Better.MORE),
        Metric("latency_ms_p50", "ms", Better.LESS),
        Metric("latency_ms_p99", "ms", Better.LESS),
        Metric("throughput_kept", "of one replica's", Better.MORE),
    )
    contenders = ("penstock", "kafka")
    baseline = "kafka"
    plots: ClassVar[tuple[Plot, ...]] = (
        Plot(
            ("records_per_second", "cpu_us_per_request"),
            along="chunk",
            panels="replication",
            logarithmic=True,
        ),
        Plot(
            ("leader_cost", "throughput_kept"),
            along="chunk",
            within={"replication": "2"},
            name="backup",
        ),
    )
    seconds = 3.0
    goals: ClassVar[tuple[Goal, ...]] = (
        Goal("cpu_us_per_request", "penstock", 1 / 3, to="kafka", within={"replication": "1"}),
        Goal("leader_cost", "penstock", 1.6, within={"replication": "2"}),
    )

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._servers: dict[tuple[str, int], Server] = {}
        self._without: dict[tuple[str, int], str] = {}
        self._warm: set[Server] = set()

    def variants(self) -> Sequence[Variant]:
        return [
            {"replication": replication, "chunk": chunk}
            for replication in self._factors()
            for chunk in self.options.texts("chunk")
        ]

    def _factors(self) -> list[str]:
        """One replica is always measured: what more of them cost is told by it."""
        return sorted({"1", *self.options.texts("replication")})

    def start(self, contender: str) -> None:
        for replication in map(int, self._factors()):
            try:
                self._start(contender, replication)
            except CannotStart as error:
                if replication == 1:
                    raise
                self._without[contender, replication] = str(error)

    def _start(self, contender: str, replication: int) -> None:
        budget = parse_size(self.options.text("memory"))
        server = replicas.make(contender, self.rig, budget, replication)
        server.start()
        configs = KEPT | (_KAFKA_SEGMENT if contender == "kafka" else {})
        server.create_topic(
            TOPIC, self.options.number("partitions"), configs, replication, one_leads=replication > 1
        )
        self._servers[contender, replication] = server
        acks = _acks(str(replication))
        fill(server, self._load(_WARM_CHUNK)._replace(acks=acks), int(budget * _TURNS))

    def warm_up(self, contender: str, variant: Variant) -> None:
        server, load = self._server(contender, variant), self._load_of(variant)
        seconds = max(1.0, self.options.seconds / 2)
        known = server in self._warm or contender == "penstock" or self.options.quick
        least = 2 if known else _LEAST_WARM_UPS
        self._warm.add(server)
        until_steady(
            lambda: measured_load(server, load, seconds)["cpu_us_per_request"],
            _STEADY,
            least=least,
            most=_MOST_WARM_UPS,
        )

    def measure(self, contender: str, variant: Variant) -> Figures:
        server = self._server(contender, variant)
        figures = measured_load(server, self._load_of(variant), self.options.seconds)
        if isinstance(server, Replicated):
            server.check(TOPIC, one_leads=True)
            for role, number in (("leader", 1), ("backup", 2)):
                spent = figures[f"broker_{number}_cpu_seconds"]
                figures[f"{role}_cpu_us_per_request"] = 1e6 * spent / figures["requests"]
            if contender == "penstock":  # there is a goal for it; it takes as long again
                load = self._load_of(variant)._replace(rate=figures["records_per_second"])
                alone = measured_load(self._servers[contender, 1], load, self.options.seconds)
                figures["leader_cost"] = figures["leader_cpu_us_per_request"] / alone["cpu_us_per_request"]
        return figures

    def relate(self, samples: Sequence[Sample]) -> None:
        """With two replicas: the share of the throughput with one, and what its leader's part costs, of the
        same broker and chunk size."""
        newest = samples[-1]
        alike = [
            sample
            for sample in samples
            if sample.contender == newest.contender and _load_in(sample) == _load_in(newest)
        ]
        with_one = [sample.figures for sample in alike if _replicas(sample) == "1"]
        for figures in [sample.figures for sample in alike if _replicas(sample) != "1"] if with_one else []:
            for share, own, of_one in (
                ("throughput_kept", "records_per_second", "records_per_second"),
                ("leader_cost_at_full_speed", "leader_cpu_us_per_request", "cpu_us_per_request"),
            ):
                figures[share] = figures[own] / median(each[of_one] for each in with_one)

    def versions(self) -> dict[str, str]:
        return {server.name: server.version for server in self._servers.values()}

    def _server(self, contender: str, variant: Variant) -> Server:
        key = (contender, int(variant.get("replication", "1")))
        if key in self._without:
            raise ProcessFailed(self._without[key])
        return self._servers[key]

    def _load_of(self, variant: Variant) -> Load:
        return self._load(variant["chunk"])._replace(acks=_acks(variant.get("replication", "1")))

    def _load(self, chunk: str) -> Load:
        return Load(TOPIC, self.options.number("partitions"), chunk, self.options.number("producers"))


def _replicas(sample: Sample) -> str:
    return sample.variant.get("replication", "1")


def _load_in(sample: Sample) -> Variant:
    return {name: text for name, text in sample.variant.items() if name != "replication"}


def _acks(replication: str) -> str:
    return "1" if replication == "1" else "all"
