"""Medians, and how sure we are of their ratio: a percentile bootstrap, the same for every run of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
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
    if not these or not those or min(those) <= 0:
        return None
    source = random.Random(_SEED)
    resampled = sorted(
        median(source.choices(these, k=len(these))) / median(source.choices(those, k=len(those)))
        for _ in range(_RESAMPLES)
    )
    tail = (1 - _CONFIDENCE) / 2
    low, high = (resampled[round(share * (_RESAMPLES - 1))] for share in (tail, 1 - tail))
    return Ratio(median(these) / median(those), low, high)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values that are in order already: the first that so many are not above."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
