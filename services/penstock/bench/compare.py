"""Two results of one experiment: what became slower or faster, beyond noise."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.bench.experiment import Better
from penstock.bench.results import Key, Result
from penstock.bench.statistics import Ratio, ratio


class Change(StrEnum):
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    UNKNOWN = "one sample"
    """Nothing says how much of the difference is noise."""


@dataclass(frozen=True, slots=True)
class Difference:
    variant: str
    contender: str
    metric: str
    ratio: Ratio
    """new / old"""
    change: Change


def compare(old: Result, new: Result, tolerance: float) -> list[Difference]:
    """Every figure that both have. A change counts when the whole interval is past the tolerance."""
    found = []
    for metric in new.metrics:
        before = old.by_key(metric.name)
        for (variant, contender), values in new.by_key(metric.name).items():
            compared = ratio(values, before.get((variant, contender), []))
            if compared is not None:
                known = min(len(values), len(before[variant, contender])) > 1
                change = _change(compared, metric.better, tolerance) if known else Change.UNKNOWN
                found.append(Difference(variant, contender, metric.name, compared, change))
    return found


def vanished(old: Result, new: Result) -> list[Key]:
    """Variants and contenders that only the old one has: nothing tells what became of them."""
    left = new.medians()
    return [key for key in old.medians() if key not in left]


def _change(compared: Ratio, better: Better, tolerance: float) -> Change:
    grew = compared.low > 1 + tolerance
    shrank = compared.high < 1 / (1 + tolerance)
    if not grew and not shrank:
        return Change.SAME
    return Change.SLOWER if grew == (better is Better.LESS) else Change.FASTER
