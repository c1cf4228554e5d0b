"""Interference, the paper's central point: what producers lose when consumers read from the same broker.

Producers run alone, then beside consumers that read by push, by pull or natively, on the same CPUs in every
case; and the same on Apache Kafka with Spark's Kafka source. `producers_kept` is the share of what the same
broker takes in when nobody reads.
"""

from __future__ import annotations

from collections import defaultdict
from statistics import median
from typing import ClassVar

from penstock.bench.colocation import Colocation, Way, parameters
from penstock.bench.experiment import Better, Figures, Goal, Metric, Options, Plot, Variant
from penstock.bench.results import label
from penstock.bench.rig import Rig


class Subject(Colocation):
    about = "producers' throughput with and without consumers, push and pull, against Apache Kafka"
    parameters = parameters(chunk="4KiB,32KiB", quick_chunk="32KiB", clients="2")
    ways: ClassVar[dict[str, Way]] = {
        "no consumers": Way(None),
        "push": Way("push"),
        "pull": Way("pull"),
        "native pull": Way("native"),
        "kafka alone": Way(None, "kafka"),
        "kafka": Way("kafka", "kafka"),
        "kafka native pull": Way("native", "kafka"),
    }
    contenders = tuple(ways)
    baseline = "no consumers"
    metrics = (Metric("producers_kept", "of alone", Better.MORE), *Colocation.metrics)
    goals = (Goal("producers_kept", "pull", 1.0, to="push"),)
    plots = (Plot(tuple(metric.name for metric in metrics[:3])),)
    repeat = 2

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._alone: dict[tuple[str, str], list[float]] = defaultdict(list)

    def measure(self, contender: str, variant: Variant) -> Figures:
        figures = super().measure(contender, variant)
        alone = self._alone[self.ways[contender].broker, label(variant)]
        if self.ways[contender].consumer is None:
            alone.append(figures["producers_records_per_second"])
        if alone:
            figures["producers_kept"] = figures["producers_records_per_second"] / median(alone)
        return figures
