"""Counts kept on the hot path: plain numbers, turned into metrics when somebody scrapes.

prometheus-client's own counters take a lock and a few microseconds each; a produce request has a budget
of some tens.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

BUCKETS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Latency:
    """A histogram of seconds."""

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds


class RequestStats:
    __slots__ = ("errors", "latency")

    def __init__(self) -> None:
        self.latency: dict[int, Latency] = {}
        self.errors: dict[tuple[int, str], int] = {}

    def observe(self, api_key: int, seconds: float) -> None:
        latency = self.latency.get(api_key)
        if latency is None:
            latency = self.latency[api_key] = Latency()
        latency.observe(seconds)

    def error(self, api_key: int, name: str) -> None:
        key = (api_key, name)
        self.errors[key] = self.errors.get(key, 0) + 1
