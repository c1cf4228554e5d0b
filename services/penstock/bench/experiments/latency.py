"""Latency from the producer through the broker and Spark's real-time mode to the sink's task.

Every record carries the time it was meant to be sent at, so that a producer that falls behind counts as
latency; the query adds the time at which the sink's task had it. Both are the machine's monotonic clock.
Every record counts: where a query with state tells of several at once (a micro-batch), it is late for each.
First comes a warm-up, and what it left behind is worked off. On two CPUs Spark has one, the broker and the
producer the other. `micro-batch` is push with the shortest trigger, to compare with.
`kafka` is what a user has today: Spark's Kafka source and sink on Apache Kafka, in both ways.
"""

from __future__ import annotations

import ctypes
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.bench import servers
from penstock.bench.experiment import (
    Better,
    CannotStart,
    Experiment,
    Figures,
    Goal,
    Metric,
    Options,
    Parameter,
    Plot,
    Variant,
)
from penstock.bench.experiments.spark import start_spark
from penstock.bench.rig import Rig
from penstock.bench.servers import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_MEMORY: Final = 1 << 30
_PARTITIONS: Final = 2
_KEYS: Final = 100
_ONE_BATCH: Final = 3600
_WARM_UP_SECONDS: Final = 3.0
_FIRST_WARM_UP_SECONDS: Final = {False: 20.0, True: 8.0}
_LATER_FIRST_WARM_UP_SECONDS: Final = {False: 10.0, True: 4.0}
"""The first of a source's queries, quick or not: the JVM compiles what it runs, on the CPU that is measured.
Micro-batches come after the same source in real time, queries with state after those without."""
_LEAD_SECONDS: Final = 1.0
"""Before what is measured, at the same rate: a producer's first requests are slow."""
_QUIET_SECONDS: Final = 1.5
"""When nothing came out for so long, the query has worked off what there was."""
_CATCH_UP_SECONDS: Final = 60.0
_IN_FLIGHT: Final = 5
"""Of Kafka's Java producer. librdkafka has no bound: each record gets a request of its own however many wait,
and a broker that falls behind once (a cold JVM) never catches up."""
_START_SECONDS: Final = 60.0
_PR_SET_TIMERSLACK: Final = 29
_SINK_LINGER_MS: Final = 20
"""The stamp is taken before: what the results cost the broker should not be measured with the rest."""
_CHANGES: Final = 5
_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
_TOLD_BY: Final = 10
"""A quantile that fewer records are beyond tells of those, not of the rest."""
_STEADY: Final = {"run": "steady", "rate": "10000"}
_CHANGING: Final = {"run": "changes", "rate": "10000", "batch": "60"}
_CURVE: Final = (*(step / 20 for step in range(1, 20)), 0.97, 0.98, 0.99, 0.995, 0.999, 0.9999)
"""The shares at which the distribution is drawn."""
_SOURCES: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "push": ("penstock", {"mode": "push"}),
    "pull": ("penstock", {"mode": "pull"}),
    "kafka": ("kafka", {}),
    "micro-batch": ("penstock", {"mode": "push"}),
    "kafka micro-batch": ("kafka", {}),
}
_NOW: Final = "reflect('java.lang.System', 'nanoTime')"
"""Evaluated for each row, by the task that writes it; the JVM's clock is Python's monotonic one."""


class Span(NamedTuple):
    """The records that are measured: those due within so many seconds up to the last."""

    last: int
    seconds: float

    @property
    def since(self) -> int:
        return self.last - int(self.seconds * 1e9)


class Subject(Experiment):
    about = "latency from producer to Spark's sink in real time, against Spark's own Kafka source"
    parameters = (
        Parameter("query", "stateless,stateful", "What the stream goes through.", quick="stateless"),
        Parameter("rate", "1000,10000,50000", "Records per second.", quick="10000"),
        Parameter(
            "run",
            "steady",
            "steady: within one real-time batch, --seconds long; changes: five batches of --batch.",
        ),
        Parameter("batch", "60", "Seconds of a real-time batch in --run changes.", quick="10"),
    )
    metrics = tuple(Metric(f"latency_ms_{name}", "ms", Better.LESS) for name in _QUANTILES)
    contenders = tuple(_SOURCES)
    baseline = "kafka"
    plots = tuple(
        Plot(("latency_ms",), panels="rate", within={"query": query}, name=query, distribution=True)
        for query in ("stateless", "stateful")
    )
    goals = (
        Goal("latency_ms_p50", "push", 0.25, within=_STEADY | {"query": "stateless"}),
        Goal("latency_ms_p99", "push", 3.0, within=_STEADY | {"query": "stateless"}),
        Goal("latency_ms_p50", "push", 2.0, within=_STEADY | {"query": "stateful"}),
        Goal("latency_ms_p99", "push", 20.0, within=_STEADY | {"query": "stateful"}),
        Goal("latency_ms_p99", "push", 50.0, within=_CHANGING | {"query": "stateless"}),
    )
    seconds = 5.0
    repeat = 1
    quick_contenders = ("push", "kafka", "micro-batch")
    quick_seconds = 5.0
    quick_repeat = 1

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._spark: SparkSession | None = None
        self._servers: dict[str, Server] = {}
        self._topics = 0
        self._warm: set[tuple[str, str]] = set()
        self._producer_cpus, _ = rig.roles()

    def variants(self) -> Sequence[Variant]:
        runs: dict[str, Variant] = {"steady": {}, "changes": {"batch": self.options.text("batch")}}
        unknown = set(self.options.texts("run")) - set(runs)
        if unknown:
            raise ValueError(f"--run: {', '.join(sorted(unknown))} is none of {', '.join(runs)}")
        return [
            {"query": query, "run": run, "rate": rate, **runs[run]}
            for query in self.options.texts("query")
            for run in self.options.texts("run")
            for rate in self.options.texts("rate")
        ]

    def start(self, contender: str) -> None:
        if self._spark is None:
            # Slots, not CPUs: a task for each partition, and those that keep the state beside them.
            self._spark, self._without_kafka = start_spark(f"local[{_PARTITIONS + 2}]")
        name, _ = _SOURCES[contender]
        if name == "kafka" and self._without_kafka:
            raise CannotStart(self._without_kafka)
        if name not in self._servers:
            server = servers.make(name, self.rig, _MEMORY)
            server.start()
            self._servers[name] = server

    def measure(self, contender: str, variant: Variant) -> Figures:
        server = self._servers[_SOURCES[contender][0]]
        self._topics += 1
        source, target = f"in-{self._topics}", f"out-{self._topics}"
        _create_topics(server, {source: _PARTITIONS, target: 1})
        checkpoint = tempfile.mkdtemp(prefix="penstock-bench-checkpoint-")
        rate, batch = int(variant["rate"]), int(variant.get("batch", _ONE_BATCH))
        seconds = _CHANGES * batch if "batch" in variant else self.options.seconds
        writer = self._writer(server, contender, variant["query"], source, target)
        writer = writer.option("checkpointLocation", checkpoint)
        micro = "micro" in contender
        trigger = {"processingTime": "0 seconds"} if micro else {"realTime": f"{batch} seconds"}
        query = writer.trigger(**trigger).start()
        # A real-time query can't say when it is done with all there is: its batch goes on.
        await_all = query.processAllAvailable if micro else partial(_await_quiet, server, target)
        try:
            self._await_first(server, source, target, query)
            self._warm_up(server, source, contender, variant)
            await_all()
            last = self._produce(server, source, rate, _LEAD_SECONDS + seconds)
            await_all()
            failure = query.exception()
        finally:
            query.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)
        if failure is not None:
            raise RuntimeError(f"{contender}: {failure}")
        figures = self._latencies(server, target, variant["query"], rate, Span(last, seconds))
        _delete_topics(server, [source, target])
        return figures

    def versions(self) -> dict[str, str]:
        return {name: server.version for name, server in self._servers.items()}

    def _writer(self, server: Server, contender: str, shape: str, source: str, target: str) -> Any:
        assert self._spark is not None
        name, options = _SOURCES[contender]
        reader = self._spark.readStream.format(name).options(**options).options(**_at(server, source))
        rows = reader.option("startingOffsets", "earliest").load()
        writer = _shaped(rows, shape).writeStream.format(name).outputMode("update")
        writer = writer.options(**_at(server)).option("topic", target)
        return writer.option("kafka.linger.ms", str(_SINK_LINGER_MS))

    def _await_first(self, server: Server, source: str, target: str, query: StreamingQuery) -> None:
        """A query takes seconds to start: that is not what is measured here."""
        deadline = time.monotonic() + _START_SECONDS
        # Not asked through Spark: a real-time query may hold every slot for as long as its batch lasts.
        while not _end(server, target):
            if query.exception() is not None or time.monotonic() > deadline:
                why = query.exception() or query.status["message"]
                raise RuntimeError(f"nothing came out within {_START_SECONDS:.0f} s: {why}")
            self._produce(server, source, 10, 0.5)

    def _warm_up(self, server: Server, topic: str, contender: str, variant: Variant) -> None:
        """The first time at the highest rate there will be: what runs seldom is compiled late."""
        rate, seconds, pair = int(variant["rate"]), _WARM_UP_SECONDS, (contender, variant["query"])
        if pair not in self._warm:
            rate = max(map(int, self.options.texts("rate")))
            known = "micro" in contender or any(name == contender for name, _ in self._warm)
            first = _LATER_FIRST_WARM_UP_SECONDS if known else _FIRST_WARM_UP_SECONDS
            seconds = first[self.options.quick]
            self._warm.add(pair)
        self._produce(server, topic, rate, seconds)

    def _produce(self, server: Server, topic: str, rate: int, seconds: float) -> int:
        """When the last record was due."""
        command = [sys.executable, "-m", __name__, server.address, topic, str(rate), str(seconds)]
        child = self.rig.spawn("stamps", command, server=False, cpus=self._producer_cpus)
        return int(child.finish(seconds + _CATCH_UP_SECONDS).split()[-1])

    def _read(self, server: Server, topic: str) -> DataFrame:
        """With our own source, whichever broker it is."""
        assert self._spark is not None
        return self._spark.read.format("penstock").options(**_at(server, topic)).load()

    def _latencies(self, server: Server, target: str, query: str, rate: int, span: Span) -> Figures:
        value = "split(cast(value as string), ',')"
        stamps = self._read(server, target).selectExpr(
            "key", f"transform({value}, each -> bigint(each)) as at"
        )
        stamps = stamps.selectExpr("key", "at[0] as sent", "at[1] as seen")
        if query == "stateful":
            stamps = _each(stamps, rate)
        shares = ", ".join(map(str, (*_QUANTILES.values(), *_CURVE)))
        quantiles = f"percentile((seen - sent) / 1e6, array({shares}))"
        within = f"sent > {span.since} and sent <= {span.last}"
        found = stamps.where(within).selectExpr(f"{quantiles} as found", "count(*) as records").first()
        assert found is not None
        # A record that never came out would be the latest of all. One is at the edge of the span.
        if found.records < (expected := int(rate * span.seconds) - 1):
            raise RuntimeError(f"{found.records} of {expected} records came out: it did not keep up")
        names = [f"latency_ms_{name}" for name in _QUANTILES] + [f"latency_ms_at_{share}" for share in _CURVE]
        figures = dict(zip(names, found.found, strict=True))
        for name, share in _QUANTILES.items():
            if round(found.records * (1 - share)) < _TOLD_BY:
                del figures[f"latency_ms_{name}"]
        return figures | {"records": float(found.records)}


def _create_topics(server: Server, partitions: Mapping[str, int]) -> None:
    """Not by processes of their own, as others do: there are many of them here."""
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    topics = [NewTopic(name, count, -1) for name, count in partitions.items()]
    admin = AdminClient({"bootstrap.servers": server.address})  # its answers end with it
    for done in admin.create_topics(topics).values():
        done.result()


def _delete_topics(server: Server, names: list[str]) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": server.address})
    for done in admin.delete_topics(names).values():
        done.result()


def _end(server: Server, topic: str) -> int:
    """How many records its only partition has."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "bench"})
    try:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1]
        return end
    finally:
        consumer.close()


def _await_quiet(server: Server, topic: str) -> None:
    """Until nothing has come out for a while; not longer than a query that keeps up would ever need."""
    deadline = time.monotonic() + _CATCH_UP_SECONDS
    end, since = _end(server, topic), time.monotonic()
    while (now := time.monotonic()) - since < _QUIET_SECONDS and now < deadline:
        time.sleep(0.2)
        if (newer := _end(server, topic)) != end:
            end, since = newer, time.monotonic()


def _each(newest: DataFrame, rate: int) -> DataFrame:
    """From the newest record of a key at a time: each of that key, seen when the first not older was told."""
    gap = 1e9 * _KEYS / rate
    told = "lag(max_sent) over (partition by key order by max_sent)"
    firsts = newest.groupBy("key", "sent").agg({"seen": "min"})
    firsts = firsts.selectExpr("key", "sent as max_sent", "`min(seen)` as seen")
    counted = firsts.selectExpr("*", f"coalesce(bigint(round((max_sent - {told}) / {gap})), 1) as records")
    back = f"explode(transform(sequence(0, records - 1), n -> max_sent - bigint(n * {gap}))) as sent"
    return counted.selectExpr("seen", back)


def _at(server: Server, topic: str | None = None) -> dict[str, str]:
    return {"kafka.bootstrap.servers": server.address} | ({"subscribe": topic} if topic else {})


def _shaped(rows: DataFrame, shape: str) -> DataFrame:
    if shape == "stateless":
        return rows.selectExpr(f"concat(cast(value as string), ',', {_NOW}) as value")
    newest = rows.groupBy("key").agg({"value": "max"}).withColumnRenamed("max(value)", "sent")
    return newest.selectExpr("key", f"concat(cast(sent as string), ',', {_NOW}) as value")


def _send_stamps(address: str, topic: str, rate: int, seconds: float) -> None:
    """Records with the time they are due as their value, each sent when it is due."""
    from confluent_kafka import Producer

    # Sleeps would end 50 us late by default, and waiting awake would take a CPU from those that are measured.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    producer = Producer(
        {"bootstrap.servers": address, "linger.ms": 0, "acks": 1, "max.in.flight": _IN_FLIGHT}
    )
    producer.list_topics(topic, 10)
    gap = 1e9 / rate
    start = time.monotonic_ns()
    for number in range(int(rate * seconds)):
        due = start + int(number * gap)
        if (early := due - time.monotonic_ns()) > 0:
            time.sleep(early / 1e9)
        while True:
            try:
                producer.produce(topic, str(due), str(number % _KEYS), partition=number % _PARTITIONS)
                break
            except BufferError:  # a broker that can't keep up: what is late counts from when it was due
                producer.poll(0.01)
        producer.poll(0)
    if left := producer.flush(_CATCH_UP_SECONDS):
        sys.exit(f"{left} records were not acknowledged")
    print(due)


if __name__ == "__main__":
    _send_stamps(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
