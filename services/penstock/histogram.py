"""Latency histograms of plain numbers, turned into a metric when somebody scrapes.

prometheus-client's own take a lock and a few microseconds each; a produce request has a budget of some
tens. Used by the broker for every request and by the producers of `penstock load`.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

from prometheus_client.core import HistogramMetricFamily

BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_BOUNDS: Final = (*map(str, BUCKETS), "+Inf")


class Latency:
    """A histogram of seconds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds

    def add_to(self, family: HistogramMetricFamily, labels: list[str]) -> None:
        buckets = list(zip(_BOUNDS, accumulate(self.counts), strict=True))
        family.add_metric(labels, buckets, self.total)
