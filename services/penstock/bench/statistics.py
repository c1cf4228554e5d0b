"""Medians, and how sure we are of their ratio: a percentile bootstrap, the same for every run of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import prod
from statistics import median
from typing import Final, NamedTuple

_RESAMPLES: Final = 2000
_CONFIDENCE: Final = 0.95
_SEED: Final = 1


class Ratio(NamedTuple):
    """median(these) / median(those), and the interval that holds it with 95 % confidence."""

    value: float
    low: float
    high: float


def ratio(these: Sequence[float], those: Sequence[float]) -> Ratio | None:
    """None where there is nothing to divide by."""
    return _quotient([these], [those])


def ratio_of_ratios(
    these: Sequence[float], by: Sequence[float], those: Sequence[float], those_by: Sequence[float]
) -> Ratio | None:
    """(these / by) / (those / those_by), of their medians; None where there is nothing to divide by."""
    return _quotient([these, those_by], [by, those])


def _quotient(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]]) -> Ratio | None:
    """The product of the medians above by that of those below."""
    if not all(above) or not all(below) or min(map(min, below)) <= 0:
        return None
    source = random.Random(_SEED)

    def drawn(values: Sequence[float]) -> float:
        return median(source.choices(values, k=len(values)))

    resampled = sorted(
        prod(drawn(values) for values in above) / prod(drawn(values) for values in below)
        for _ in range(_RESAMPLES)
    )
    tail = (1 - _CONFIDENCE) / 2
    low, high = (resampled[round(share * (_RESAMPLES - 1))] for share in (tail, 1 - tail))
    return Ratio(prod(map(median, above)) / prod(map(median, below)), low, high)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values that are in order already: the first that so many are not above."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
