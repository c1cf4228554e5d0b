"""Spark over one topic: by push, by pull, and what a user has today, Spark's Kafka source on Apache Kafka.

All read the same records in one Spark, in turns; Spark's Kafka source with its defaults and tuned. The time
is the whole query's, planning included; `executor_cpu_us_per_record` is what its tasks spent, and hardly
changes with what else the machine does. local[2] as everywhere in our figures; Spark has all CPUs but the
broker's (--no-pin: all). Word counts read text in records of 2 KiB, the others 100 bytes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from penstock.bench import servers
from penstock.bench.consumers import SPARK
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
from penstock.bench.load import Load, fill
from penstock.bench.queries import AGGREGATES, QUERIES
from penstock.bench.rig import Rig
from penstock.bench.servers import Server
from penstock.settings import parse_size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_RECORDS: Final = "records"
_TEXT: Final = "text"
_STREAM: Final = "available-now"
_USUAL: Final = {"word-count": ["batch", _STREAM], "windowed-word-count": [_STREAM]}
_TEXT_RECORD: Final = 2048
_SLACK: Final = 1.5


def _goals(query: str, default: float, tuned: float) -> tuple[Goal, ...]:
    """In records per second: topics are filled for whole seconds, so that Kafka's has fewer records."""
    return tuple(
        Goal("records_per_second", to, 1 / times, to="push", within={"query": query})
        for to, times in (("kafka", default), ("kafka tuned", tuned))
    )


class Subject(Experiment):
    about = "Spark queries by push and by pull, against Spark's own Kafka source"
    parameters = (
        Parameter("query", ",".join(QUERIES), "What is asked of the topic.", quick="count"),
        Parameter(
            "trigger",
            "usual",
            "batch, available-now (a stream), or both; usual: as the query is mostly run.",
        ),
        Parameter("size", "1GiB", "How much is in the topic.", quick="64MiB"),
        Parameter("text", "32MiB", "How much text the word counts read.", quick="8MiB"),
        Parameter("chunk", "16KiB", "Size of its record batches."),
        Parameter("partitions", "8", "Of the topic."),
    )
    metrics = (
        Metric("seconds", "s", Better.LESS),
        Metric("records_per_second", "records/s", Better.MORE),
        Metric("executor_cpu_us_per_record", "us", Better.LESS),
    )
    contenders = tuple(SPARK)
    baseline = "kafka"
    plots = (Plot(("seconds", "executor_cpu_us_per_record"), logarithmic=True),)
    repeat = 2
    goals = (*_goals("pass", 12, 6), *_goals("filter", 8, 5), *_goals("count", 50, 25))

    def __init__(self, rig: Rig, options: Options) -> None:
        super().__init__(rig, options)
        self._spark: SparkSession | None = None
        self._servers: dict[str, Server] = {}
        self._records: dict[tuple[str, str], int] = {}
        self._kafka_warm: list[Variant] = []

    def variants(self) -> Sequence[Variant]:
        unknown = set(self.options.texts("query")) - set(QUERIES)
        if unknown:
            raise ValueError(f"--query: {', '.join(sorted(unknown))} is none of {', '.join(QUERIES)}")
        return [
            {"query": query, "trigger": trigger}
            for query in self.options.texts("query")
            for trigger in self._triggers(query)
        ]

    def _triggers(self, query: str) -> list[str]:
        given = self.options.texts("trigger")
        return given if given != ["usual"] else _USUAL.get(query, ["batch"])

    def start(self, contender: str) -> None:
        if self._spark is None:
            self._spark, self._without_kafka = start_spark("local[2]")
        if contender.startswith("kafka") and self._without_kafka:
            raise CannotStart(self._without_kafka)
        if _broker(contender) not in self._servers:
            self._start_server(_broker(contender))

    def _start_server(self, name: str) -> None:
        sizes = {
            _RECORDS: parse_size(self.options.text("size")),
            _TEXT: parse_size(self.options.text("text")),
        }
        server = servers.make(name, self.rig, int(sum(sizes.values()) * _SLACK + (512 << 20)))
        server.start()
        partitions = self.options.number("partitions")
        wanted = {_topic(query) for query in self.options.texts("query")}
        for topic in sorted(wanted):
            server.create_topic(topic, partitions, {})
            load = Load(topic, partitions, self.options.text("chunk"))
            if topic == _TEXT:
                load = load._replace(record=_TEXT_RECORD, text="", producers=1)
            fill(server, load, sizes[topic])
        self._servers[name] = server
        for topic in wanted:
            rows = self._read("pull", topic, server, stream=False)
            self._records[name, topic] = rows.count()

    def warm_up(self, contender: str, variant: Variant) -> None:
        """Spark's Kafka source runs the same code however it is tuned."""
        if contender == "kafka tuned" and variant in self._kafka_warm:
            return
        if contender.startswith("kafka"):
            self._kafka_warm.append(variant)
        self.measure(contender, variant)

    def measure(self, contender: str, variant: Variant) -> Figures:
        assert self._spark is not None
        stream, query = variant["trigger"] == _STREAM, variant["query"]
        server, topic = self._servers[_broker(contender)], _topic(query)
        records = self._records[server.name, topic]
        cpu = _Cpu(self._spark)
        started = time.perf_counter()
        rows = QUERIES[query](self._read(contender, topic, server, stream=stream))
        if stream:
            _run_stream(rows, complete=query in AGGREGATES)
        else:
            rows.write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - started
        return {
            "seconds": seconds,
            "records": records,
            "records_per_second": records / seconds,
            "executor_cpu_us_per_record": 1e6 * cpu.seconds() / records,
        }

    def versions(self) -> dict[str, str]:
        return {name: server.version for name, server in self._servers.items()}

    def _read(self, contender: str, topic: str, server: Server, *, stream: bool) -> DataFrame:
        assert self._spark is not None
        source, options = SPARK[contender]
        reader: Any = self._spark.readStream if stream else self._spark.read
        reader = reader.format(source).options(**options).option("startingOffsets", "earliest")
        reader = reader.option("kafka.bootstrap.servers", server.address).option("subscribe", topic)
        rows: DataFrame = reader.load()
        return rows


def _broker(contender: str) -> str:
    return "kafka" if contender.startswith("kafka") else "penstock"


def _topic(query: str) -> str:
    return _TEXT if "word" in query else _RECORDS


def start_spark(master: str) -> tuple[SparkSession, str | None]:
    """A session for measuring, and why it lacks Spark's Kafka source, if it does. Ends with this process."""
    try:
        from penstock.spark import session
    except ImportError as error:
        raise CannotStart(f"{error}: pip install 'penstock[spark]'") from None
    from penstock.spark.kafka_source import KafkaJarsMissing, kafka_jars

    confs: dict[str, Any] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": 2,
    }
    missing = None
    try:
        confs["spark.jars"] = ",".join(map(str, kafka_jars()))
    except KafkaJarsMissing as error:
        missing = str(error)
    spark = session("penstock-bench", master, **confs)
    # A stream that is stopped logs its tasks as errors; one that fails tells whoever waits for it.
    spark.sparkContext.setLogLevel("FATAL")
    return spark, missing


def _run_stream(rows: DataFrame, *, complete: bool) -> None:
    checkpoint = tempfile.mkdtemp(prefix="penstock-bench-checkpoint-")
    try:
        writer = rows.writeStream.format("noop").outputMode("complete" if complete else "append")
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


class _Cpu:
    """CPU time of the tasks that ran since it was made, from what Spark keeps for its UI."""

    def __init__(self, spark: SparkSession) -> None:
        self._context: Any = spark.sparkContext
        self._before = max((stage.stageId() for stage in self._stages()), default=-1)

    def seconds(self) -> float:
        spent = (s.executorCpuTime() for s in self._stages() if s.stageId() > self._before)
        return float(sum(spent)) / 1e9

    def _stages(self) -> list[Any]:
        context, gateway = self._context._jsc.sc(), self._context._gateway
        context.listenerBus().waitUntilEmpty()
        no_quantiles = gateway.new_array(gateway.jvm.double, 0)
        stages = context.statusStore().stageList(None, False, False, no_quantiles, None)
        return [stages.apply(index) for index in range(stages.size())]
