"""Load without an end: the producers of `run`, started anew wherever the leaders went.

Called by `penstock load --seconds 0`, the producer of a deployment. It ends when it is cancelled, and by
nothing else: a broker that dies or refuses is one line in the log, and the next round asks who leads now.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from penstock.load.producer import Tally
from penstock.load.run import LoadFailed, LoadPlan, run_load

log = logging.getLogger(__name__)

_PAUSE: Final = 0.2
_REPORT_EVERY: Final = 10
"""Seconds from one line with figures to the next."""

FindLeaders = Callable[[], Awaitable[Mapping[str, Sequence[int]]]]


class _Figures:
    """The rate and latency of the last seconds, as one line in the log."""

    def __init__(self) -> None:
        self._records = 0
        self._latencies: list[float] = []
        self._seconds = 0

    def second(self, tally: Tally) -> None:
        self._seconds += 1
        self._latencies.extend(tally.latencies)
        del tally.latencies[:]  # a producer that never ends can't keep them
        if self._seconds == _REPORT_EVERY:
            rate = (tally.records - self._records) / self._seconds
            ordered = sorted(self._latencies) or [0.0]
            log.info(
                "%.0f records/s acknowledged, p50 %.2f ms, p99 %.2f ms, %d records in all",
                rate,
                1000 * ordered[len(ordered) // 2],
                1000 * ordered[int(0.99 * (len(ordered) - 1))],
                tally.records,
            )
            self._records, self._seconds = tally.records, 0
            self._latencies.clear()


async def run_steadily(plan: LoadPlan, find_leaders: FindLeaders, tally: Tally) -> None:
    """Produce until cancelled. `tally` grows over all rounds."""
    figures = _Figures()

    def on_second(_elapsed: float, now: Tally) -> None:
        figures.second(now)

    while True:
        try:
            leaders = await find_leaders()
            log.info("%s: producing to %s", plan.topic, _spread(leaders))
            tally.failure = None
            await run_load(replace(plan, leaders=leaders, seconds=math.inf), on_second, tally=tally)
            log.warning("%s: %s; looking for the leaders", plan.topic, tally.failure)
        except (LoadFailed, OSError) as error:
            log.warning("%s: %s; looking for the leaders", plan.topic, error)
        await asyncio.sleep(_PAUSE)


def _spread(leaders: Mapping[str, Sequence[int]]) -> str:
    return ", ".join(f"{address} ({len(partitions)} partitions)" for address, partitions in leaders.items())
