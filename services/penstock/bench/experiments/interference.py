"""Interference, the paper's central point: what producers lose when consumers read from the same broker.

Producers run alone, then beside consumers that read by push, by pull or natively, on the same CPUs in every
case; and the same on Apache Kafka with Spark's Kafka source. `producers_kept` is the share of what the same
broker takes in when nobody reads. Whoever pulls asks for 1 MiB of a partition at a time, Kafka's default.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import ClassVar, Final

from penstock.bench.colocation import Colocation, Way, parameters
from penstock.bench.experiment import Better, Goal, Metric, Plot, Sample

_PRODUCED: Final = "producers_records_per_second"


class Subject(Colocation):
    about = "producers' throughput with and without consumers, push and pull, against Apache Kafka"
    parameters = parameters(chunk="4KiB,32KiB", quick_chunk="32KiB", clients="2", fetch="1MiB")
    ways: ClassVar[dict[str, Way]] = {
        "no consumers": Way(None),
        "push": Way("push"),
        "pull": Way("pull"),
        "native pull": Way("native"),
        "kafka alone": Way(None, "kafka"),
        "kafka": Way("kafka", "kafka"),
        "kafka tuned": Way("kafka tuned", "kafka"),
        "kafka native pull": Way("native", "kafka"),
    }
    contenders = tuple(ways)
    quick_contenders = ("no consumers", "push", "pull", "kafka alone", "kafka")
    baseline = "no consumers"
    metrics = (Metric("producers_kept", "of alone", Better.MORE), *Colocation.metrics)
    goals = (Goal("producers_kept", "pull", 1.0, to="push"),)
    plots = (Plot(tuple(metric.name for metric in metrics[:3])),)
    repeat = 2

    def relate(self, samples: Sequence[Sample]) -> None:
        """What producers keep is a share of all samples without consumers, whichever came first."""
        newest = samples[-1]
        alike = [
            sample
            for sample in samples
            if sample.variant == newest.variant and self._broker(sample) == self._broker(newest)
        ]
        alone = [
            sample.figures[_PRODUCED] for sample in alike if self.ways[sample.contender].consumer is None
        ]
        for sample in alike if alone else ():
            sample.figures["producers_kept"] = sample.figures[_PRODUCED] / median(alone)

    def _broker(self, sample: Sample) -> str:
        return self.ways[sample.contender].broker
