"""What an experiment is: it names what varies and what it measures, and the runner does the rest.

An experiment is one file in `experiments/` with a class called `Subject`, found by its file name. The
runner asks it for `variants` (what varies) and `contenders` (who is compared), starts each contender once,
warms up each pair once, and then calls `measure` in turns, so that whatever else the machine does hits all
contenders alike. A contender that raises `CannotStart` is reported as missing, never as a zero.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Final

from penstock.bench import experiments
from penstock.bench.rig import Rig

Variant = Mapping[str, str]
"""What varies, by name: {"chunk": "16KiB"}."""
Figures = dict[str, float]

_ORDER: Final = (
    *("ingest", "interference"),
    *(f"figure{number}" for number in range(3, 10)),
    *("spark", "latency", "yahoo"),
    *("fetch", "push"),
    "failover",
    *("replication", "records", "partitions", "brokers"),
    *("recovery", "catchup"),
)
"""What a run of all begins with: what matters most first, what leaves gigabytes to write back last."""


class CannotStart(Exception):
    """A contender is not to be had on this machine; the text says why."""


class Better(StrEnum):
    LESS = "less"
    MORE = "more"


@dataclass(frozen=True, slots=True)
class Metric:
    name: str
    unit: str
    better: Better


@dataclass(frozen=True, slots=True)
class Parameter:
    """An option of the experiment's own, as text; lists are separated by commas."""

    name: str
    default: str
    about: str
    quick: str | None = None
    """What --quick takes instead of the default."""


@dataclass(frozen=True, slots=True)
class Sample:
    contender: str
    variant: Variant
    round: int
    figures: Figures


@dataclass(frozen=True, slots=True)
class Goal:
    """`metric` of `contender`, divided by that of contender `to` if there is one, is at most `limit`."""

    metric: str
    contender: str
    limit: float
    to: str | None = None
    within: Variant = field(default_factory=dict)
    """Only for variants with these labels."""

    def __str__(self) -> str:
        return f"{self.metric} of {self.contender}" + (f" / {self.to}" if self.to else "")


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture of the result: bars by variant, or lines along one of its labels. Written beside it."""

    metrics: tuple[str, ...]
    """A row of panels each. For a distribution: the beginning of the names of its quantiles' figures."""
    along: str | None = None
    """The label on the horizontal axis; bars without one."""
    panels: str | None = None
    """The label that gets a column of panels for each of its values."""
    within: Variant = field(default_factory=dict)
    """Only variants with these labels."""
    name: str = ""
    """What tells it from the experiment's other plots, in its file's name."""
    title: str = ""
    logarithmic: bool = False
    distribution: bool = False
    """What share of records takes longer, from detail figures called METRIC_at_QUANTILE."""


@dataclass(frozen=True, slots=True)
class Options:
    seconds: float
    repeat: int
    quick: bool = False
    values: Mapping[str, str] = field(default_factory=dict)
    contenders: Sequence[str] = field(default_factory=list)
    """Only these; all if there are none."""

    def text(self, name: str) -> str:
        return self.values[name]

    def texts(self, name: str) -> list[str]:
        return [part.strip() for part in self.values[name].split(",") if part.strip()]

    def number(self, name: str) -> int:
        return int(self.values[name])


class Experiment(ABC):
    """One measurement. Made anew for each run; its processes belong to the rig, which ends them."""

    about: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    metrics: ClassVar[tuple[Metric, ...]]
    contenders: ClassVar[tuple[str, ...]]
    baseline: ClassVar[str | None] = None
    """The contender that the others' figures are divided by."""
    goals: ClassVar[tuple[Goal, ...]] = ()
    plots: ClassVar[tuple[Plot, ...]] = ()
    """Without any, each metric is drawn as bars."""
    seconds: ClassVar[float] = 8.0
    repeat: ClassVar[int] = 3
    repeatable: ClassVar[bool] = True
    """Whether `--repeat` of all is for it too."""
    in_quick_run: ClassVar[bool] = True
    """Whether `penstock bench all --quick` has it: ten minutes are enough for one of each kind."""
    quick_contenders: ClassVar[tuple[str, ...]] = ()
    """Whom --quick has; all if there are none."""
    quick_seconds: ClassVar[float] = 2.0
    quick_repeat: ClassVar[int] = 2

    def __init__(self, rig: Rig, options: Options) -> None:
        self.rig = rig
        self.options = options

    @abstractmethod
    def variants(self) -> Sequence[Variant]: ...

    def relate(self, samples: Sequence[Sample]) -> None:  # noqa: B027  # most have none
        """Called after each sample, with all there are: for figures that take more than one."""

    @abstractmethod
    def start(self, contender: str) -> None:
        """Bring a contender up. Raises CannotStart if it is not to be had."""

    def warm_up(self, contender: str, variant: Variant) -> None:  # noqa: B027  # most need none
        """Called once for each pair, before any contender is measured with that variant."""

    @abstractmethod
    def measure(self, contender: str, variant: Variant) -> Figures:
        """One sample. Figures without a metric of that name are kept as detail."""

    def versions(self) -> dict[str, str]:
        """Versions of what was measured, besides our own."""
        return {}

    @classmethod
    def options_from(
        cls,
        seconds: float | None,
        repeat: int | None,
        quick: bool,
        given: Mapping[str, str | None],
        contenders: str = "",
    ) -> Options:
        """What was asked for, over this experiment's defaults."""
        named = [name.strip() for name in contenders.split(",") if name.strip()]
        unknown = set(named) - set(cls.contenders)
        if unknown:
            raise ValueError(f"--contenders: {', '.join(unknown)} is none of {', '.join(cls.contenders)}")
        values = {}
        for parameter in cls.parameters:
            default = parameter.quick if quick and parameter.quick is not None else parameter.default
            values[parameter.name] = given.get(parameter.name) or default
        return Options(
            seconds or (cls.quick_seconds if quick else cls.seconds),
            repeat or (cls.quick_repeat if quick else cls.repeat),
            quick,
            values,
            named or (list(cls.quick_contenders) if quick else []),
        )


def names() -> list[str]:
    """In the order of a run of all; what has no place in it comes last."""
    return in_order(module.name for module in pkgutil.iter_modules(experiments.__path__))


def in_order(found: Iterable[str]) -> list[str]:
    places = {name: place for place, name in enumerate(_ORDER)}
    return sorted(found, key=lambda name: (places.get(name, len(places)), name))


def load(name: str) -> type[Experiment]:
    subject: type[Experiment] = importlib.import_module(f"{experiments.__name__}.{name}").Subject
    return subject
