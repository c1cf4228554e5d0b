"""`python -m simulate`: random schedules on the simulated cluster, on all cores, until time is up.

Exits with 0 when none broke a promise. `make simulate MINUTES=10 SEED=1000` calls it; a failing seed is told
at once, and `SEED=n` with `SCHEDULES=1` plays just that one again, with what the brokers have to say.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import os
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Final, NamedTuple

from schedules import play

AT_ONCE: Final = 25
"""Schedules that a worker plays before it reports."""
PROGRESS: Final = 10.0


class Played(NamedTuple):
    schedules: int
    acknowledged: int
    failures: dict[int, str]


def play_some(seeds: range) -> Played:
    logging.disable(logging.CRITICAL)
    acknowledged, failures = 0, {}
    for seed in seeds:
        try:
            acknowledged += len(play(seed).acknowledged)
        except Exception as error:
            failures[seed] = f"{type(error).__name__}: {error}"[:500]
    return Played(len(seeds), acknowledged, failures)


def on_all_cores(first: int, deadline: float) -> Iterator[Played]:
    """Everything from `first` on, without a gap, until the deadline."""
    cores = os.cpu_count() or 1
    starts = itertools.count(first, AT_ONCE)
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        waiting = [
            pool.submit(play_some, range(at, at + AT_ONCE)) for at in itertools.islice(starts, 2 * cores)
        ]
        while waiting:
            yield waiting.pop(0).result()
            if time.monotonic() < deadline:
                at = next(starts)
                waiting.append(pool.submit(play_some, range(at, at + AT_ONCE)))


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--schedules", type=int, default=0, help="play just so many, here, and say all")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the first schedule; the next has the next one"
    )
    told = parser.parse_args()
    if told.schedules:
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        for seed in range(told.seed, told.seed + told.schedules):
            say(f"seed {seed}: {len(play(seed).acknowledged)} acknowledged, all there")
        return 0
    began = told_at = time.monotonic()
    schedules = acknowledged = 0
    failed: list[int] = []
    for played in on_all_cores(told.seed, began + 60 * told.minutes):
        schedules += played.schedules
        acknowledged += played.acknowledged
        for seed, why in played.failures.items():
            say(f"seed {seed} FAILED: {why}")
            failed.append(seed)
        if time.monotonic() - told_at >= PROGRESS:
            told_at = time.monotonic()
            done = f"{schedules} schedules, {acknowledged} acknowledged"
            say(f"{told_at - began:6.0f} s  {done}, {len(failed)} failed")
    took = time.monotonic() - began
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = (usage.ru_utime + usage.ru_stime) / schedules
    last, rate = told.seed + schedules - 1, 60 * schedules / took
    say(f"seeds {told.seed} to {last} in {took:.0f} s: {rate:.0f} a minute, {1000 * cost:.0f} ms of CPU each")
    say(f"{acknowledged} acknowledged; " + (f"FAILED: {failed}" if failed else "nothing lost or changed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
