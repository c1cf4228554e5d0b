"""Latency from the producer through the broker and Spark's real-time mode to the sink's task.

Every record carries the time it was meant to be sent at, so that a producer that falls behind counts as
latency; the query adds the time at which the sink's task had it. Both are the machine's monotonic clock.
Records of the first seconds are left out. On two CPUs Spark has one, the broker and the producer the other.
`micro-batch` is push with the shortest trigger, to compare with.
`kafka` is what a user has today: Spark's Kafka source and sink on Apache Kafka, in both ways.
"""

from __future__ import annotations

import ctypes
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

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
_ONE_BATCH: Final = "10 minutes"
_WARM_UP_SECONDS: Final = 5.0
_FIRST_WARM_UP_SECONDS: Final = 20.0
_QUICK_FIRST_WARM_UP_SECONDS: Final = 8.0
"""The first of a source's queries: the JVM compiles what it runs, on the CPU that is measured."""
_SETTLE_SECONDS: Final = 2.0
_START_SECONDS: Final = 60.0
_PR_SET_TIMERSLACK: Final = 29
_SINK_LINGER_MS: Final = 20
"""The stamp is taken before: what the results cost the broker should not be measured with the rest."""
_LONG: Final = 10
"""How much longer a run with changes of batches is than one in steady state."""
_QUANTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
_STEADY: Final = {"run": "steady", "rate": "10000"}
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


class Subject(Experiment):
    about = "latency from producer to Spark's sink in real time, against Spark's own Kafka source"
    parameters = (
        Parameter("query", "stateless,stateful", "What the stream goes through."),
        Parameter("rate", "1000,10000,50000", "Records per second.", quick="10000"),
        Parameter(
            "run",
            "steady",
            "steady: within one real-time batch; changes: batches of --batch, ten times as long.",
        ),
        Parameter("batch", "60 seconds", "Length of a real-time batch in --run changes."),
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
        Goal("latency_ms_p99", "push", 50.0, within=_STEADY | {"query": "stateless", "run": "changes"}),
    )
    seconds = 12.0
    repeat = 1
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
        return [
            {"query": query, "run": run, "rate": rate}
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
        server.create_topic(source, _PARTITIONS, {})
        server.create_topic(target, 1, {})
        checkpoint = tempfile.mkdtemp(prefix="penstock-bench-checkpoint-")
        steady = variant["run"] == "steady"
        seconds = self.options.seconds * (1 if steady else _LONG)
        batch = _ONE_BATCH if steady else self.options.text("batch")
        writer = self._writer(server, contender, variant["query"], source, target)
        writer = writer.option("checkpointLocation", checkpoint)
        trigger = {"processingTime": "0 seconds"} if "micro" in contender else {"realTime": batch}
        query = writer.trigger(**trigger).start()
        try:
            self._await_first(server, source, target, query)
            warm_up = self._warm_up_seconds(_SOURCES[contender][0], variant["query"])
            self._produce(server, source, int(variant["rate"]), warm_up + seconds)
            time.sleep(_SETTLE_SECONDS)
            failure = query.exception()
        finally:
            query.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)
        if failure is not None:
            raise RuntimeError(f"{contender}: {failure}")
        return self._latencies(server, target, seconds)

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

    def _warm_up_seconds(self, source: str, query: str) -> float:
        if (source, query) in self._warm:
            return _WARM_UP_SECONDS
        self._warm.add((source, query))
        return _QUICK_FIRST_WARM_UP_SECONDS if self.options.quick else _FIRST_WARM_UP_SECONDS

    def _produce(self, server: Server, topic: str, rate: int, seconds: float) -> None:
        command = [sys.executable, "-m", __name__, server.address, topic, str(rate), str(seconds)]
        child = self.rig.spawn("stamps", command, server=False, cpus=self._producer_cpus)
        child.finish(seconds + 60)

    def _read(self, server: Server, topic: str) -> DataFrame:
        """With our own source, whichever broker it is."""
        assert self._spark is not None
        return self._spark.read.format("penstock").options(**_at(server, topic)).load()

    def _latencies(self, server: Server, target: str, seconds: float) -> Figures:
        """Of the last seconds that were produced: what lies before is warm-up."""
        stamps = self._read(server, target).selectExpr("split(cast(value as string), ',') as stamp")
        stamps = stamps.selectExpr("cast(stamp[0] as long) as sent", "cast(stamp[1] as long) as seen")
        newest = stamps.selectExpr("max(sent) as sent").first()
        if newest is None or newest.sent is None:
            raise RuntimeError("no record came out")
        since = newest.sent - int(seconds * 1e9)
        shares = ", ".join(map(str, (*_QUANTILES.values(), *_CURVE)))
        quantiles = f"percentile((seen - sent) / 1e6, array({shares}))"
        found = (
            stamps.where(f"sent > {since}").selectExpr(f"{quantiles} as found", "count(*) as records").first()
        )
        assert found is not None
        names = [f"latency_ms_{name}" for name in _QUANTILES] + [f"latency_ms_at_{share}" for share in _CURVE]
        return dict(zip(names, found.found, strict=True)) | {"records": float(found.records)}


def _end(server: Server, topic: str) -> int:
    """How many records its only partition has."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "bench"})
    try:
        end: int = consumer.get_watermark_offsets(TopicPartition(topic, 0), 10)[1]
        return end
    finally:
        consumer.close()


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
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "acks": 1})
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
    producer.flush(30)


if __name__ == "__main__":
    _send_stamps(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
