"""A run of the paper's producers: so many of them, for so long, and the figures it plots.

Called by `penstock load` and the benchmarks.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

from penstock.load.chunks import TIMEOUT_MS, ChunkRequest, different, make_chunk
from penstock.load.content import filler, text
from penstock.load.producer import ChunkProducer, Tally
from penstock.wire.records import Compression


class LoadFailed(Exception):
    """The broker refused records or went away; the text says which."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    topic: str
    leaders: Mapping[str, Sequence[int]]
    """HOST:PORT of each leader, and the partitions that are to be written there."""
    chunk: int = 16 * 1024
    record: int = 100
    producers: int = 1
    pipeline: int = 1
    rate: float = 0.0
    """Records per second, of all producers together; 0 for as many as can be."""
    seconds: float = 10.0
    size: int = 0
    """Bytes in all, after which it ends before its time; 0 for no such end."""
    compression: Compression = Compression.NONE
    acks: int = 1
    text: bool = False
    """Words instead of filler: for word counts."""
    text_file: Path | None = None
    """Where the words are from; a made-up vocabulary without it."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    seconds: float
    requests: int
    records: int
    bytes: int
    refused: int
    records_per_second: float
    median_records_per_second: float
    """The median of whole seconds, as the paper plots it."""
    megabytes_per_second: float
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    latency_ms_max: float | None
    failure: str | None


async def run_load(
    plan: LoadPlan, on_second: Callable[[float, Tally], None] | None = None, tally: Tally | None = None
) -> LoadReport:
    """Produce for `plan.seconds` or `plan.size` bytes, or until the first refusal if the time is infinite.

    Raises LoadFailed when nothing could be written at all.
    """
    loop = asyncio.get_running_loop()
    tally = tally or Tally()
    made, records = _make_chunks(plan)
    chunks = sum(map(len, plan.leaders.values())) * plan.producers  # when each connection has sent a request
    interval = chunks * records / plan.rate if plan.rate else 0.0
    requests = math.ceil(plan.size / (chunks * mean(map(len, made)))) if plan.size else None
    producers: list[ChunkProducer] = []
    try:
        for _ in range(plan.producers):
            for address, partitions in plan.leaders.items():
                host, _, port = address.rpartition(":")
                # More than there are chunks if so many may be on their way.
                own = itertools.islice(itertools.cycle(made), max(len(made), plan.pipeline))
                frames = [ChunkRequest(plan.topic, partitions, chunk, records, plan.acks) for chunk in own]
                make = partial(
                    ChunkProducer,
                    frames,
                    tally,
                    pipeline=plan.pipeline,
                    acks=plan.acks,
                    interval=interval,
                    requests=requests,
                )
                _, producer = await loop.create_connection(make, host.strip("[]"), int(port))
                producers.append(producer)
        started = time.perf_counter()
        per_second = await _watch(plan.seconds, started, tally, producers, on_second)
        for producer in producers:
            producer.stop()
        await asyncio.wait([producer.finished for producer in producers], timeout=TIMEOUT_MS / 1000)
        elapsed = time.perf_counter() - started
    finally:
        for producer in producers:
            producer.close()
    why = tally.failure or tally.full
    if why is not None and tally.records == 0:
        raise LoadFailed(why)
    return _report(tally, elapsed, per_second)


def _make_chunks(plan: LoadPlan) -> tuple[list[bytes], int]:
    """Different chunks, and how many records each holds. They all lie in memory once for each producer."""
    values = text(plan.record, file=plan.text_file) if plan.text else filler(plan.record)
    in_all = sum(map(len, plan.leaders.values())) * plan.producers * plan.chunk
    made = [make_chunk(plan.chunk, plan.record, plan.compression, values) for _ in range(different(in_all))]
    return [chunk for chunk, _ in made], made[0][1]


async def _watch(
    seconds: float,
    started: float,
    tally: Tally,
    producers: Sequence[ChunkProducer],
    on_second: Callable[[float, Tally], None] | None,
) -> list[int]:
    """Records in each whole second, until the time is up or a producer can't go on."""
    per_second: list[int] = []
    before = tally.records
    while (elapsed := time.perf_counter() - started) < seconds:
        pause = min(len(per_second) + 1, seconds) - elapsed
        await asyncio.wait([producer.finished for producer in producers], timeout=max(pause, 0.0))
        done = [producer.finished.done() for producer in producers]
        if all(done) or (any(done) and tally.failure is not None):
            break
        if seconds == math.inf and tally.failure is not None:
            break
        if time.perf_counter() - started >= len(per_second) + 1:
            per_second.append(tally.records - before)
            before = tally.records
            if on_second is not None:
                on_second(time.perf_counter() - started, tally)
    return per_second


def _report(tally: Tally, elapsed: float, per_second: Sequence[int]) -> LoadReport:
    latencies = sorted(tally.latencies)

    def percentile(share: float) -> float | None:
        return round(1000 * latencies[int(share * (len(latencies) - 1))], 3) if latencies else None

    rate = tally.records / elapsed
    ordered = sorted(per_second)
    return LoadReport(
        seconds=round(elapsed, 3),
        requests=tally.requests,
        records=tally.records,
        bytes=tally.bytes,
        refused=tally.refused,
        records_per_second=round(rate, 1),
        median_records_per_second=float(ordered[len(ordered) // 2]) if ordered else round(rate, 1),
        megabytes_per_second=round(tally.bytes / elapsed / 1e6, 2),
        latency_ms_p50=percentile(0.5),
        latency_ms_p99=percentile(0.99),
        latency_ms_max=percentile(1.0),
        failure=tally.failure,
    )
