"""Counts kept on the hot path: plain numbers, turned into metrics when somebody scrapes."""

from __future__ import annotations

from penstock.histogram import Latency


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
