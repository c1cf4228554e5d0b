"""Warming up: looking at what something costs until that stands still.

A JVM compiles what it runs, for many seconds, and must not be judged then.
"""

from __future__ import annotations

from collections.abc import Callable


def until_steady(cost: Callable[[], float], change: float, *, least: int, most: int) -> None:
    """Take the cost again and again, `least` times at least, until two in a row differ by less than `change`
    of it, or it was taken `most` times."""
    before = 0.0
    for looks in range(1, most + 1):
        now = cost()
        if looks >= least and abs(now - before) < change * now:
            return
        before = now
