"""Two results of one experiment: what became slower or faster, beyond noise.

Contenders are compared by their ratio to the baseline that was measured beside them, if both results have
one: what the machine did on that day is in both figures. The baseline itself is compared as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.bench.experiment import Better
from penstock.bench.results import Key, Result
from penstock.bench.statistics import Ratio, ratio, ratio_of_ratios


class Change(StrEnum):
    SLOWER = "slower"
    FASTER = "faster"
    SAME = "same"
    UNKNOWN = "too few samples"
    """Of fewer than three on a side nothing says how much of the difference is noise."""


_ENOUGH: Final = 3


@dataclass(frozen=True, slots=True)
class Difference:
    variant: str
    contender: str
    metric: str
    ratio: Ratio
    """new / old"""
    change: Change
    to: str | None = None
    """The contender that both were divided by: the machine may have been faster on one of the two days."""


def compare(old: Result, new: Result, tolerance: float) -> list[Difference]:
    """Every figure that both have. A change counts when the whole interval is past the tolerance."""
    found = []
    for metric in new.metrics:
        before, after = old.by_key(metric.name), new.by_key(metric.name)
        for (variant, contender), values in after.items():
            earlier = before.get((variant, contender), [])
            to = new.baseline if old.baseline == new.baseline and contender != new.baseline else None
            bases = [each.get((variant, to), []) for each in (after, before)] if to else []
            compared = ratio_of_ratios(values, bases[0], earlier, bases[1]) if bases else None
            if compared is None:
                to, bases = None, []
                compared = ratio(values, earlier)
            if compared is not None:
                known = min(map(len, (values, earlier, *bases))) >= _ENOUGH
                change = _change(compared, metric.better, tolerance) if known else Change.UNKNOWN
                found.append(Difference(variant, contender, metric.name, compared, change, to))
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
