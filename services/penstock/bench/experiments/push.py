"""Reading by push: the log in shared memory, read in place; and what is left of the broker's work.

The same data as in `fetch`, whose lean reader is the baseline here, in the same run. An idle broker beats
its heart and looks at its memory: `idle` measures that, and `net` figures are without it.
"""

from __future__ import annotations

from statistics import median

from penstock.bench.experiment import Better, Figures, Goal, Metric, Options, Variant
from penstock.bench.experiments import fetch
from penstock.bench.rig import Rig


class Subject(fetch.Subject):
    about = "push: records/s from shared memory and broker CPU per GB, against pull"
    metrics = (
        *fetch.Subject.metrics,
        Metric("net_broker_cpu_seconds_per_gb", "s/GB", Better.LESS),
        Metric("broker_cpu_share", "of a CPU", Better.LESS),
    )
    contenders = ("idle", "raw", "batches", "records")
    baseline = "raw"
    goals = (
        Goal("broker_cpu_seconds_per_gb", "batches", 0.02, to="raw"),
        Goal("net_broker_cpu_seconds_per_gb", "batches", 0.02, to="raw"),
    )

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._idle: list[float] = []

    def measure(self, contender: str, variant: Variant) -> Figures:
        figures = super().measure(contender, variant)
        if contender == "idle":
            self._idle.append(figures["broker_cpu_share"])
        elif self._idle and "gigabytes_per_second" in figures:
            net = figures["broker_cpu_share"] - median(self._idle)
            figures["net_broker_cpu_seconds_per_gb"] = max(net, 0.0) / figures["gigabytes_per_second"]
        return figures
