"""Consumers of a colocation experiment: Spark by push or pull, Spark's Kafka source, or a native client.

Each is started before the producers, follows the end of the topic, and says afterwards how many records it
had read at any moment.
"""

from __future__ import annotations

import itertools
import re
import sys
import time
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from statistics import median
from typing import Final, NamedTuple

from penstock.bench.rig import Child
from penstock.bench.servers import Server
from penstock.bench.sparkprocess import Batch, Follow, SparkProcess
from penstock.bench.spread import shares

_READY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.2
_STEADY_SECONDS: Final = 2.0
_FASTER: Final = 1.05
_TICK: Final = re.compile(r"^(\d+\.\d+) (\d+)$", re.MULTILINE)
_TUNED: Final = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.receive.buffer.bytes": str(1 << 20),
}
"""What Spark's Kafka source reads fastest with."""
SPARK: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "push": ("penstock", {"mode": "push"}),
    "pull": ("penstock", {"mode": "pull"}),
    "kafka": ("kafka", {}),
    "kafka tuned": ("kafka", _TUNED),
}
"""Ways to read with Spark: the source's name and its options."""
_FALL_BACK: Final = {"push": {"mode": "auto"}}
"""Nobody holds the producers back: a reader too slow for memory pulls what it lost, and the share is told."""


class Reading(NamedTuple):
    """What is read, by how many, and with what requests."""

    topic: str
    partitions: int
    consumers: int
    fetch: int
    """Bytes of each partition in an answer; means nothing for push."""
    record: int
    batch: int
    """Records that a micro-batch of Spark reads at most."""
    query: str


class Tally:
    """Records read by moment of the wall clock, between the moments on a straight line."""

    def __init__(self, moments: Sequence[tuple[float, float]]) -> None:
        self._times = [at for at, _ in moments]
        self._counts = [count for _, count in moments]

    @classmethod
    def of_batches(cls, batches: Sequence[Batch]) -> Tally:
        """A micro-batch reads evenly from its beginning to its end, and counts only if it came to that."""
        total = 0
        moments: list[tuple[float, float]] = []
        for batch in batches:
            moments.append((batch.started, total))
            total += batch.records
            moments.append((batch.started + batch.seconds, total))
        return cls(moments)

    def at(self, moment: float) -> float:
        index = bisect_right(self._times, moment)
        if index == 0:
            return 0.0
        if index == len(self._times):
            return self._counts[-1]
        before, after = self._times[index - 1], self._times[index]
        share = (moment - before) / (after - before) if after > before else 1.0
        return self._counts[index - 1] + share * (self._counts[index] - self._counts[index - 1])


def median_per_second(tallies: Sequence[Tally], start: float, end: float) -> float:
    """The median over whole seconds of what all of them read, as the paper plots it."""
    whole = max(1, int(end - start))
    moments = [start + second for second in range(whole + 1)]
    totals = [sum(tally.at(moment) for tally in tallies) for moment in moments]
    return median(after - before for before, after in itertools.pairwise(totals))


class Consumers(ABC):
    @abstractmethod
    def stop(self, since: float) -> list[Tally]:
        """End them; those that read in batches first finish the one that was running at `since`."""


class NativeConsumers(Consumers):
    def __init__(self, server: Server, reading: Reading, cpus: frozenset[int]) -> None:
        command = [sys.executable, "-m", "penstock.bench.following", server.address, reading.topic]
        self._children: list[Child] = []
        # A partition has one reader, as in a group: more consumers than partitions have nothing to do.
        for number, share in enumerate(
            shares(reading.partitions, min(reading.consumers, reading.partitions))
        ):
            partitions = [str(each) for each in share]
            child = server.rig.spawn(
                f"native-{number}",
                [*command, str(reading.fetch), reading.query, *partitions],
                server=False,
                cpus=cpus,
            )
            self._children.append(child)
        for child in self._children:
            child.wait_for_line("^ready", _READY_SECONDS)

    def stop(self, since: float) -> list[Tally]:
        for child in self._children:
            if not child.running:
                child.finish(0)  # says why
            child.kill()
        return [
            Tally([(float(at), float(count)) for at, count in _TICK.findall(child.output)])
            for child in self._children
        ]


class SparkConsumers(Consumers):
    def __init__(self, spark: SparkProcess, server: Server, reading: Reading, way: str) -> None:
        self._spark = spark
        spark.follow(_follow(server, reading, way))

    def stop(self, since: float) -> list[Tally]:
        return [Tally.of_batches(self._spark.stop(since))]


def _follow(server: Server, reading: Reading, way: str) -> Follow:
    name, own = SPARK[way]
    options = {
        "kafka.bootstrap.servers": server.address,
        "subscribe": reading.topic,
        "maxOffsetsPerTrigger": str(reading.batch),
        "failOnDataLoss": "false",
    }
    if name != "kafka":  # which stays as its users have it
        options["kafka.max.partition.fetch.bytes"] = str(reading.fetch)
    return Follow(name, options | own | _FALL_BACK.get(way, {}), reading.query, reading.consumers)


def steady_rate(batches: Sequence[Batch]) -> float | None:
    """Records per second of the last seconds, once they are hardly more than in the seconds before."""
    if not batches:
        return None
    tally, end = Tally.of_batches(batches), batches[-1].started + batches[-1].seconds
    if end - batches[0].started < 2 * _STEADY_SECONDS:
        return None
    last, middle, first = (tally.at(end - back * _STEADY_SECONDS) for back in range(3))
    return (last - middle) / _STEADY_SECONDS if last - middle <= _FASTER * (middle - first) else None


def warm_up(spark: SparkProcess, server: Server, reading: Reading, way: str, seconds: float) -> float:
    """Have Spark read what the topic holds, again and again, until it gets no faster or time is up, for the
    JVM compiles what runs often while it runs. The records per second that it came to."""
    read: list[Batch] = []
    rate, deadline = None, time.monotonic() + seconds
    while rate is None and time.monotonic() < deadline:
        spark.follow(_follow(server, reading, way)._replace(begin="earliest"))
        now: list[Batch] = []
        while rate is None and time.monotonic() < deadline and not (now and spark.idle()):
            time.sleep(_LOOK_SECONDS)
            now = spark.batches()
            rate = steady_rate(now)
        read += spark.stop(time.time())
    fastest = max((batch.records / batch.seconds for batch in read if batch.seconds), default=0.0)
    return rate or fastest


def rate_in_batches_of(seconds: float, measure: Callable[[int], float], least: int) -> float:
    """Records per second, as `measure` finds them for a batch's most records. In small batches what Spark
    spends on each hides how fast it reads: measured once so, and again in batches as long as they may be."""
    return measure(max(least, int(seconds * measure(least))))


class NoConsumers(Consumers):
    def stop(self, since: float) -> list[Tally]:
        return []
