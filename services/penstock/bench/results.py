"""What a run leaves behind: one JSON document with every sample, and where and with what it was taken.

Written anew after each sample, so that a run that was cut short keeps what it measured.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any, Final

from penstock import COMPILED
from penstock.bench.experiment import Better, Figures, Goal, Metric, Sample, Variant
from penstock.bench.statistics import Ratio, ratio
from penstock.spark import kafka_source

FORMAT: Final = 1
DIRECTORY: Final = Path("artifacts") / "bench"
_PACKAGES: Final = ("penstock", "uvloop", "kio", "crc32c", "aiokafka", "confluent-kafka", "pyspark")
_LOOK_SECONDS: Final = 0.5
_PROGRAMS: Final = {"java": "-version", "etcd": "--version"}

Key = tuple[str, str]
"""A variant, as text, and a contender."""


class UnreadableResult(Exception):
    """A file that is no result of the bench, or of another format."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a goal came out in one variant; `met` is None when there was nothing to judge."""

    goal: Goal
    variant: str
    value: float | None
    met: bool | None


@dataclass(slots=True)
class Result:
    experiment: str
    metrics: tuple[Metric, ...]
    baseline: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    complete: bool = False
    took_seconds: float = 0.0
    """From the first start of a contender to the last sample."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    commit: str | None = None
    missing: dict[str, str] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Samples that came to nothing, each with the reason."""

    def by_key(self, metric: str) -> dict[Key, list[float]]:
        found: dict[Key, list[float]] = {}
        for sample in self.samples:
            if metric in sample.figures:
                key = (label(sample.variant), sample.contender)
                found.setdefault(key, []).append(sample.figures[metric])
        return found

    def medians(self) -> dict[Key, Figures]:
        found: dict[Key, Figures] = {}
        for metric in self.metrics:
            for key, values in self.by_key(metric.name).items():
                found.setdefault(key, {})[metric.name] = median(values)
        return found

    def ratios(self, metric: str, to: str) -> dict[Key, Ratio]:
        """Of every contender to contender `to`, in each variant that both have."""
        values = self.by_key(metric)
        found = {}
        for (variant, contender), mine in values.items():
            others = values.get((variant, to))
            compared = ratio(mine, others) if others and contender != to else None
            if compared is not None:
                found[variant, contender] = compared
        return found

    def judge(self, goals: Iterable[Goal]) -> list[Verdict]:
        verdicts = []
        for goal in goals:
            values = self.by_key(goal.metric)
            wanted = {
                label(sample.variant): None
                for sample in self.samples
                if all(sample.variant.get(name) == text for name, text in goal.within.items())
            }
            for variant in wanted:
                mine = values.get((variant, goal.contender))
                value = median(mine) if mine else None
                if goal.to is not None:
                    compared = ratio(mine or [], values.get((variant, goal.to), []))
                    value = compared.value if compared else None
                verdicts.append(Verdict(goal, variant, value, None if value is None else value <= goal.limit))
        return verdicts

    def document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "experiment": self.experiment,
            "started": self.started,
            "complete": self.complete,
            "took_seconds": round(self.took_seconds, 1),
            "commit": self.commit,
            "options": dict(self.options),
            "machine": dict(self.machine),
            "versions": self.versions,
            "baseline": self.baseline,
            "metrics": {m.name: {"unit": m.unit, "better": m.better.value} for m in self.metrics},
            "missing": self.missing,
            "failures": self.failures,
            "medians": [
                {"variant": variant, "contender": contender, **figures}
                for (variant, contender), figures in self.medians().items()
            ],
            "ratios": self._ratio_documents(),
            "samples": [
                {
                    "variant": dict(sample.variant),
                    "contender": sample.contender,
                    "round": sample.round,
                    **sample.figures,
                }
                for sample in self.samples
            ],
        }

    def _ratio_documents(self) -> list[dict[str, Any]]:
        if self.baseline is None:
            return []
        return [
            {"variant": variant, "contender": contender, "to": self.baseline, "metric": metric.name}
            | {name: round(value, 4) for name, value in found._asdict().items()}
            for metric in self.metrics
            for (variant, contender), found in self.ratios(metric.name, self.baseline).items()
        ]

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.document(), indent=1) + "\n")
        temporary.rename(path)


def read(path: Path) -> Result:
    try:
        found = json.loads(path.read_text())
        if found["format"] != FORMAT:
            raise UnreadableResult(f"{path} has format {found['format']}, this program reads {FORMAT}")
        fixed = ("variant", "contender", "round")
        return Result(
            experiment=found["experiment"],
            metrics=tuple(
                Metric(name, entry["unit"], Better(entry["better"]))
                for name, entry in found["metrics"].items()
            ),
            baseline=found["baseline"],
            options=found["options"],
            started=found["started"],
            complete=found["complete"],
            took_seconds=found.get("took_seconds", 0.0),
            machine=found["machine"],
            versions=found["versions"],
            commit=found["commit"],
            missing=found["missing"],
            failures=found.get("failures", []),
            samples=[
                Sample(
                    entry["contender"],
                    entry["variant"],
                    entry["round"],
                    {name: value for name, value in entry.items() if name not in fixed},
                )
                for entry in found["samples"]
            ],
        )
    except OSError as error:
        raise UnreadableResult(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableResult(f"{path} is no result of `penstock bench`: {error!r}") from None


def label(variant: Variant) -> str:
    return " ".join(f"{name}={value}" for name, value in variant.items()) or "-"


def machine() -> dict[str, Any]:
    """How busy it was before: right before, as a load average would still tell of the last experiment."""
    import psutil

    return {
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "busy_before": round(psutil.cpu_percent(_LOOK_SECONDS) / 100, 2),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0], "python_build": _python_build(), "hot_path": _hot_path()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    for program, option in _PROGRAMS.items():
        if shutil.which(program) is not None:
            said = subprocess.run([program, option], capture_output=True, text=True, check=False)
            found[program] = (said.stdout or said.stderr).partition("\n")[0].strip()
    return found


def kafka_source_versions() -> dict[str, str]:
    """Of Spark's Kafka source and the client in it, as far as they were fetched."""
    artifacts = [each for each in kafka_source.ARTIFACTS if kafka_source.jar_of(each).is_file()]
    return {name: version for _group, name, version in (each.split(":") for each in artifacts)}


def _python_build() -> str:
    """Where it is from and how it was made: an optimised build runs our code about a quarter faster."""
    flag = "--enable-optimizations"
    said = flag in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    return f"{sys.base_prefix} {flag}" if said else sys.base_prefix


def _hot_path() -> str:
    return "compiled" if COMPILED else "interpreted"


def commit() -> str | None:
    """The commit of the working tree, with a + when it has changes; None outside of one."""
    if shutil.which("git") is None:
        return None
    here = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        done = subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "--short=12", "HEAD")
    return f"{head}+" if head and git("status", "--porcelain", "--untracked-files=no") else head
