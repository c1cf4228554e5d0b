"""Yahoo's streaming benchmark: views of ads, joined with their campaigns, counted in windows of 10 seconds.

Producers keep to a rate; event time is the time a record was due. `behind_seconds` is how much of the rate
was not read yet at the end: a rate is sustained if that is about the length of a micro-batch and did not grow
in the second half. Latency is from the newest event of a count to the task that writes it to the sink, a
topic of the same broker, and is told of sustained rates only: what comes out too late would be missing.
`sustainable_events_per_second` is a contender's highest rate that was sustained in every round.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Final

from penstock.bench import servers
from penstock.bench.consumers import SPARK, Tally
from penstock.bench.experiment import (
    Better,
    CannotStart,
    Experiment,
    Figures,
    Metric,
    Options,
    Parameter,
    Plot,
    Sample,
    Variant,
)
from penstock.bench.queries import AD_COUNTS
from penstock.bench.rig import Rig
from penstock.bench.servers import Server
from penstock.bench.sparkprocess import Follow, SparkProcess
from penstock.bench.statistics import quantile
from penstock.settings import parse_size

_FIRST_SECONDS: Final = 2.0
_WARM_SECONDS: Final = 6.0
_GRACE: Final = 60.0
_SUSTAINED: Final = 2.0
_GROWTH: Final = 0.5
"""Seconds that it may have got further behind in the second half: batches end when they end."""
_SUSTAINED_RATE: Final = "sustained_events_per_second"
_SUSTAINABLE_RATE: Final = "sustainable_events_per_second"
_CONFIGS: Final = {"retention.bytes": str(256 << 20)}
_TOPIC: Final = "ads"
_QUANTILES: Final = (*(share / 20 for share in range(1, 20)), 0.97, 0.99, 0.999)


class Subject(Experiment):
    about = "Yahoo's streaming benchmark: sustainable rate and latency, against Apache Kafka"
    parameters = (
        Parameter("rate", "100000,150000,200000", "Events per second.", quick="50000"),
        Parameter("partitions", "4", "Of the topic."),
        Parameter("memory", "3GiB", "Our broker's memory budget."),
    )
    metrics = (
        Metric(_SUSTAINABLE_RATE, "events/s", Better.MORE),
        Metric("behind_seconds", "s", Better.LESS),
        Metric("latency_ms_p50", "ms", Better.LESS),
        Metric("latency_ms_p99", "ms", Better.LESS),
    )
    contenders = ("push", "kafka", "kafka tuned")
    baseline = "kafka"
    plots = (
        Plot(("behind_seconds", "latency_ms_p50", "latency_ms_p99"), along="rate"),
        Plot(("latency_ms",), name="latency", panels="rate", distribution=True),
    )
    seconds = 20.0
    repeat = 1
    quick_seconds = 4.0
    quick_repeat = 1
    in_quick_run = False

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._servers: dict[str, Server] = {}
        self._spark: SparkProcess | None = None
        self._outputs = 0
        self._warm: set[str] = set()
        self._producer_cpus, self._consumer_cpus = rig.roles()

    def variants(self) -> Sequence[Variant]:
        return [{"rate": rate} for rate in self.options.texts("rate")]

    def start(self, contender: str) -> None:
        if self._spark is None:
            self._spark = SparkProcess(self.rig, self.options.number("partitions"), self._consumer_cpus)
        name, _ = SPARK[contender]
        missing = self._spark.without_kafka() if name == "kafka" else None
        if missing:
            raise CannotStart(missing)
        if name not in self._servers:
            server = servers.make(name, self.rig, parse_size(self.options.text("memory")))
            server.start()
            server.create_topic(_TOPIC, self.options.number("partitions"), _CONFIGS)
            self._servers[name] = server

    def warm_up(self, contender: str, variant: Variant) -> None:
        if contender not in self._warm:
            self._warm.add(contender)
            self._sample(contender, variant, _WARM_SECONDS)

    def measure(self, contender: str, variant: Variant) -> Figures:
        return self._sample(contender, variant, self.options.seconds)

    def relate(self, samples: Sequence[Sample]) -> None:
        """One figure for each contender, the same at all of its rates."""
        own = [sample for sample in samples if sample.contender == samples[-1].contender]
        lost = {sample.variant["rate"] for sample in own if _SUSTAINED_RATE not in sample.figures}
        kept = [sample.figures[_SUSTAINED_RATE] for sample in own if sample.variant["rate"] not in lost]
        for sample in own:
            sample.figures.pop(_SUSTAINABLE_RATE, None)
            if kept:
                sample.figures[_SUSTAINABLE_RATE] = max(kept)

    def versions(self) -> dict[str, str]:
        return {name: server.version for name, server in self._servers.items()}

    def _sample(self, contender: str, variant: Variant, seconds: float) -> Figures:
        assert self._spark is not None
        name, own = SPARK[contender]
        server = self._servers[name]
        self._outputs += 1
        output = f"counts-{self._outputs}"
        server.create_topic(output, 1, {})
        at = {"kafka.bootstrap.servers": server.address}
        options = {**at, **own, "subscribe": _TOPIC, "failOnDataLoss": "false"}
        self._spark.follow(Follow(name, options, AD_COUNTS, sink={**at, "topic": output}))
        rate = float(variant["rate"])
        report = self._produce(server, rate, seconds + _FIRST_SECONDS)
        end = time.time()
        tally = Tally.of_batches(self._spark.stop(end))
        start = end - report["seconds"] + _FIRST_SECONDS
        behind = max(0.0, report["records"] - tally.at(end)) / rate
        middle = (start + end) / 2
        read_late = tally.at(end) - tally.at(middle)
        growth = (end - middle) * (1 - read_late / (report["records"] / report["seconds"] * (end - middle)))
        figures: Figures = {
            "behind_seconds": behind,
            "growth_seconds": growth,
            "read_per_second": (tally.at(end) - tally.at(start)) / (end - start),
            "producer_latest_ms": report["latest_ms"],
        }
        if behind >= _SUSTAINED or growth > _GROWTH:
            return figures
        figures[_SUSTAINED_RATE] = report["records"] / report["seconds"]
        return figures | _latencies(self._spark.values(name, {**at, "subscribe": output}), start)

    def _produce(self, server: Server, rate: float, seconds: float) -> dict[str, float]:
        command = [sys.executable, "-m", "penstock.bench.pacing", server.address, _TOPIC]
        numbers = map(str, (self.options.number("partitions"), rate, seconds))
        child = self.rig.spawn("pacing", [*command, *numbers], server=False, cpus=self._producer_cpus)
        report: dict[str, float] = json.loads(child.finish(seconds + _GRACE))
        return report


def _latencies(values: Sequence[str], start: float) -> Figures:
    """Of the counts whose newest event came after `start`."""
    pairs = [tuple(map(int, value.split(","))) for value in values]
    found = sorted(seen - newest for newest, seen in pairs if newest >= start * 1000)
    if not found:
        return {}
    figures = {f"latency_ms_at_{share:.3f}": float(quantile(found, share)) for share in _QUANTILES}
    return figures | {
        "latency_ms_p50": float(quantile(found, 0.5)),
        "latency_ms_p99": float(quantile(found, 0.99)),
        "counts": float(len(found)),
    }
