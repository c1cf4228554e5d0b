"""One experiment at the terminal, for `penstock bench`: its progress, its end by Ctrl-C, its pictures."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from penstock.bench.experiment import Experiment
    from penstock.bench.results import Result
    from penstock.bench.runner import Step, Watch


def draw(result: Result, path: Path) -> list[Path]:
    from penstock.bench import experiment, plots

    if result.experiment not in experiment.names():
        return plots.draw(result, (), path)
    subject = experiment.load(result.experiment)
    return plots.draw(result, subject.plots, path, subject.about, subject.contenders)


def run(
    name: str,
    subject: type[Experiment],
    seconds: float | None,
    repeat: int | None,
    quick: bool,
    own: Mapping[str, str | None],
    contenders: str,
    pin: bool,
    out: Path | None,
) -> Result:
    from penstock.bench import results, runner

    path = out or results.DIRECTORY / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    options = subject.options_from(seconds, repeat, quick, own, contenders)
    before = signal.signal(signal.SIGTERM, _interrupt)  # `timeout` and CI end us so; leave nothing then
    try:
        with _progress(name) as watch:
            return runner.run(name, subject, options, path, pin=pin, watch=watch)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; what was measured is in {path}", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
        if path.exists():
            _show_written(name, path)


def run_each(names: Sequence[str], quick: bool, repeat: int | None, directory: Path) -> list[str]:
    """Experiments one after the other, each with a JVM and a session of its own; those that failed."""
    from penstock.bench import experiment

    failed = []
    begun = time.monotonic()
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        for number, name in enumerate(names, 1):
            typer.echo(
                f"==> {name}, {number} of {len(names)}, {_progress_of(begun, number - 1, len(names))}",
                err=True,
            )
            command = [sys.executable, "-m", "penstock.cli.main", "bench", name]
            command += ["--out", str(directory / f"{name}.json"), *(["--quick"] if quick else [])]
            if repeat is not None and experiment.load(name).repeatable:
                command += ["--repeat", str(repeat)]
            os.sync()  # what the last one left to be written is not for this one to wait for
            if _wait(subprocess.Popen(command)):
                failed.append(name)
    except KeyboardInterrupt:
        typer.echo(f"interrupted; what was measured is in {directory}", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    return failed


def fetch_kafka(names: Sequence[str]) -> None:
    """Apache Kafka and Spark's source for it, before anything is timed; what can't be had is told."""
    from penstock.bench import experiment, kafka
    from penstock.spark import kafka_source

    if not any("kafka" in contender for name in names for contender in experiment.load(name).contenders):
        return
    for what, fetch in (("Apache Kafka", kafka.jars), ("Spark's Kafka source", kafka_source.kafka_jars)):
        try:
            fetch()
        except (kafka.NoKafka, kafka_source.KafkaJarsMissing) as error:
            typer.echo(f"without {what}: {error}", err=True)


def gaps(names: Sequence[str], directory: Path) -> dict[str, list[str]]:
    """What experiments did not measure, by their names: contenders that were missing, samples that failed."""
    from penstock.bench import results

    found: dict[str, list[str]] = {}
    for name in names:
        try:
            result = results.read(directory / f"{name}.json")
        except results.UnreadableResult as error:
            found[name] = [str(error)]
            continue
        told = [] if result.samples else ["no samples"]
        told += ["cut short"] if not result.complete else []
        told += [f"missing: {contender}: {why}" for contender, why in result.missing.items()]
        told += [f"failed: {failure}" for failure in result.failures]
        if told:
            found[name] = told
    return found


def _progress_of(begun: float, done: int, total: int) -> str:
    """Experiments differ, so that the time left is a rough guess until half of them are done."""
    spent = time.monotonic() - begun
    left = f", about {_clock(spent / done * (total - done))} left" if done else ""
    return f"{_clock(spent)} so far{left}"


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Its exit code. Interrupted, it is told so too, and ends in order before this does."""
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.terminate()
        child.wait()
        raise


def _show_written(name: str, path: Path) -> None:
    """Say where the result is, its pictures drawn: of a run that was cut short too."""
    from penstock.bench import plots, results

    typer.echo(f"{name}: {path}", err=True)
    try:
        for written in draw(results.read(path), path):
            typer.echo(f"{name}: {written}", err=True)
    except plots.CannotPlot as error:
        typer.echo(f"{name}: no pictures: {error}", err=True)


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


class _progress:
    """One line that moves on a terminal; a line per step in a file."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.status import Status

        self._name = name
        self._status = Status(name, console=Console(stderr=True)) if sys.stderr.isatty() else None

    def __enter__(self) -> Watch:
        if self._status is not None:
            self._status.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def _show(self, step: Step) -> None:
        left = "" if step.seconds_left is None else f", about {_clock(step.seconds_left)} left"
        text = f"{self._name} {step.done}/{step.total or '?'}: {step.what}{left}"
        if self._status is not None:
            self._status.update(text)
        else:
            typer.echo(text, err=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
