"""The runner: contenders in turns, every sample kept, nothing left behind.

Order of work: for each variant, every contender is warmed up; then, for each round, each is measured once,
beginning with another one each round and each variant. The result is on disk after every sample, whatever
happens next.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from penstock.bench import results
from penstock.bench.experiment import CannotStart, Experiment, Options, Sample, Variant
from penstock.bench.results import Result
from penstock.bench.rig import ProcessFailed, Rig


class Step(NamedTuple):
    """Where a run is, for whoever shows it."""

    done: int
    total: int
    what: str
    seconds_left: float | None


Watch = Callable[[Step], None]


def run(
    name: str,
    subject: type[Experiment],
    options: Options,
    path: Path,
    *,
    pin: bool = True,
    watch: Watch = lambda step: None,
) -> Result:
    """Run an experiment into `path`. KeyboardInterrupt passes through, after everything was ended."""
    result = Result(
        name,
        subject.metrics,
        subject.baseline,
        options=asdict(options),
        machine=results.machine(),
        versions=results.versions(),
        commit=results.commit(),
    )
    with Rig(pin=pin) as rig:
        experiment = subject(rig, options)
        _Run(experiment, result, path, watch).go()
        result.complete = True
        result.write(path)
    return result


class _Run:
    def __init__(self, experiment: Experiment, result: Result, path: Path, watch: Watch) -> None:
        self._experiment = experiment
        self._result = result
        self._path = path
        self._watch = watch
        self._contenders: list[str] = []
        self._done = 0
        self._total = 0
        self._begun = time.monotonic()
        self._measuring_since = 0.0

    def go(self) -> None:
        variants = list(self._experiment.variants())
        for contender in self._experiment.options.contenders or self._experiment.contenders:
            self._show(f"starting {contender}")
            try:
                self._experiment.start(contender)
                self._contenders.append(contender)
            except (CannotStart, ProcessFailed) as error:
                self._result.missing[contender] = str(error)
        self._result.versions |= self._experiment.versions()
        if any(contender.startswith("kafka") for contender in self._contenders):
            self._result.versions |= results.kafka_source_versions()
        self._write()
        rounds = range(self._experiment.options.repeat)
        self._total = len(variants) * len(rounds) * len(self._contenders)
        self._measuring_since = time.monotonic()
        for place, variant in enumerate(variants):
            warm = [contender for contender in self._contenders if self._warm_up(contender, variant)]
            for number in rounds:
                shift = (place + number) % max(len(warm), 1)
                for contender in warm[shift:] + warm[:shift]:
                    self._sample(contender, variant, number)

    def _warm_up(self, contender: str, variant: Variant) -> bool:
        """All are warmed up before one is measured: they share a JVM, and the first must not pay for the
        others. One that fails is told, never counted; the others are still worth their time."""
        self._show(f"{results.label(variant)} {contender}, warming up")
        with self._told(f"{results.label(variant)} {contender}, warming up") as told:
            self._experiment.warm_up(contender, variant)
        return not told

    def _sample(self, contender: str, variant: Variant, number: int) -> None:
        self._show(f"{results.label(variant)} {contender}")
        with self._told(f"{results.label(variant)} {contender}, round {number}"):
            figures = self._experiment.measure(contender, variant)
            self._result.samples.append(Sample(contender, variant, number, figures))
            self._experiment.relate(self._result.samples)
        self._write()
        self._done += 1

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[list[str]]:
        """A failure inside, whatever raised it (Spark has its own), is noted in the result; yields that."""
        noted: list[str] = []
        try:
            yield noted
        except Exception as error:
            noted.append(f"{what}: {error or type(error).__name__}")
            self._result.failures += noted
            self._write()

    def _write(self) -> None:
        self._result.took_seconds = time.monotonic() - self._begun
        self._result.write(self._path)

    def _show(self, what: str) -> None:
        left = None
        if self._done:
            spent = time.monotonic() - self._measuring_since
            left = spent / self._done * (self._total - self._done)
        self._watch(Step(self._done, self._total, what, left))
