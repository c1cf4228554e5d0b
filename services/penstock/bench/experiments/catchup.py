"""Catching up: what producers lose while a backup that is gigabytes behind copies what it missed.

A leader and its backup; the backup is killed, so much is written without it, and it comes back. Contenders
are three times of one run: `alone` (the backup is gone), `catching up`, and `in sync` again. All brokers and
producers share all CPUs, so that whatever the copying takes, producers feel. They keep to half of what the
pair takes at full speed: it is busy, and the backup has a chance to catch up with what comes in meanwhile. If
it does not within `--patience`, what producers got until then counts, and `in sync` has failed.

What copying takes from producers at full speed is told too, `full_speed_slowdown`: what the leader takes just
before the backup is back, over what it takes in the first seconds of copying.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import ClassVar, Final

from penstock.bench.experiment import Better, Experiment, Figures, Goal, Metric, Options, Parameter, Variant
from penstock.bench.load import Load, fill, run_load
from penstock.bench.pair import Pair
from penstock.bench.rig import ProcessFailed, Rig

_TOPIC: Final = "catchup"
_LAST_SECONDS: Final = 10.0
_FILLING: Final = "64KiB"


class Subject(Experiment):
    about = "producers' throughput while a backup that is gigabytes behind catches up"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("gigabytes", "10", "How far it is behind.", quick="1"),
        Parameter("chunk", "1KiB", "Size of record batches."),
        Parameter("partitions", "8", "Of the topic."),
        Parameter("rate", "0.5x", "Records of 100 bytes a second; 0.5x: of the pair's full speed; 0: full."),
        Parameter("samples", "0", "While it copies; 0: until it is in sync, which --rate 0 may prevent."),
        Parameter("patience", "240", "Seconds that it may copy."),
        Parameter("memory", "512MiB", "Each broker's memory budget: the rest is read from disk."),
    )
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("records_per_second", "records/s", Better.MORE),
        Metric("latency_ms_p50", "ms", Better.LESS),
        Metric("latency_ms_p99", "ms", Better.LESS),
        Metric("catch_up_megabytes_per_second", "MB/s", Better.MORE),
        Metric("full_speed_slowdown", "times", Better.LESS),
        Metric("full_speed_records_per_second", "records/s", Better.MORE),
    )
    contenders = ("alone", "catching up", "in sync")
    baseline = "alone"
    goals: ClassVar[tuple[Goal, ...]] = (
        Goal("records_per_second", "alone", 1 / 0.8, to="catching up"),
        Goal("full_speed_slowdown", "catching up", 1 / 0.8),
    )
    repeat = 1
    repeatable = False
    quick_repeat = 1
    seconds = 10.0
    in_quick_run = False

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._pair: Pair | None = None
        self._behind = 0.0
        """Megabytes."""
        self._full_speed = 0.0
        """Of the pair."""
        self._until = 0.0

    def variants(self) -> Sequence[Variant]:
        if self.options.repeat > 1:
            raise ValueError("--repeat: a backup falls behind once in a run; run it again instead")
        return [{"gigabytes": self.options.text("gigabytes")}]

    def start(self, contender: str) -> None:
        if self._pair is not None:
            return  # one after the other, in one cluster
        everything = self.rig.server_cpus | self.rig.load_cpus
        pair = Pair(self.rig, _size(self.options.text("memory")), cpus=everything)
        pair.start(_TOPIC, self.options.number("partitions"), {})
        wanted = int(float(self.options.text("gigabytes")) * 1e9)
        full = self._load(rate=0)
        self._full_speed = run_load(pair.server, full, self.options.seconds)["records_per_second"]
        pair.broker(2).process.kill()
        pair.wait_in_sync(1)
        self._behind = fill(pair.server, full._replace(chunk=_FILLING), wanted) / 1e6
        self._pair = pair

    def measure(self, contender: str, variant: Variant) -> Figures:
        pair = self._pair
        assert pair is not None
        if contender == "alone":
            report = run_load(pair.server, self._load(), self.options.seconds)
            self._behind += report["bytes"] / 1e6
            return _figures(report) | {"full_speed_records_per_second": self._full_speed}
        if contender == "in sync":
            pair.wait_in_sync(2, timeout=max(_LAST_SECONDS, self._until - time.monotonic()))
            return _figures(run_load(pair.server, self._load(), self.options.seconds))
        return self._catch_up(pair)

    def _catch_up(self, pair: Pair) -> Figures:
        """Samples of load, one after the other, until the backup is in sync; their median counts."""
        samples = self.options.number("samples")
        full, seconds = self._load(rate=0), self.options.seconds
        before = run_load(pair.server, full, seconds)
        pair.broker(2).start()
        began = time.monotonic()
        self._until = began + self.options.number("patience")
        first = run_load(pair.server, full, seconds)
        slowdown = before["records_per_second"] / first["records_per_second"]
        self._behind += (before["bytes"] + first["bytes"]) / 1e6
        reports: list[dict[str, float]] = []

        def told(samples: list[dict[str, float]]) -> Figures:
            return _figures(_median(samples)) | {"full_speed_slowdown": slowdown}

        while not samples or len(reports) < samples:
            reports.append(run_load(pair.server, self._load(), seconds))
            try:
                pair.wait_in_sync(2, timeout=0.0)
                break
            except ProcessFailed:
                if time.monotonic() > self._until:
                    return told(reports)
        else:
            return told(reports)
        took = time.monotonic() - began
        copied = self._behind + sum(report["bytes"] for report in reports) / 1e6
        whole = reports[:-1] or reports  # it was in sync somewhere in the last one
        return told(whole) | {"catch_up_megabytes_per_second": copied / took, "catch_up_seconds": took}

    def _load(self, rate: float | None = None) -> Load:
        text = self.options.text("rate")
        share = text.removesuffix("x")
        wanted = float(share) * (self._full_speed if share != text else 1.0) if rate is None else rate
        partitions = self.options.number("partitions")
        return Load(_TOPIC, partitions, self.options.text("chunk"), rate=wanted, acks="all")


def _median(reports: list[dict[str, float]]) -> dict[str, float]:
    return sorted(reports, key=lambda report: report["records_per_second"])[len(reports) // 2]


def _figures(report: dict[str, float]) -> Figures:
    names = ("records_per_second", "latency_ms_p50", "latency_ms_p99", "refused")
    return {name: report[name] for name in names}


def _size(text: str) -> int:
    from penstock.settings import parse_size

    return parse_size(text)
