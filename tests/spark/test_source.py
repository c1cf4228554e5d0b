"""What our source does beyond Spark's: pruning, its own options, and what it tells of itself."""

from __future__ import annotations

import contextlib
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client import CollectorRegistry
from topics import Topic, now_ms

from harness import BrokerProcess, eventually
from penstock.spark.latency import latencies, observe_latency
from penstock.spark.listener import ProgressExporter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

START = now_ms() - 3_600_000  # retention would take records of long ago
RECORDS = 900


@pytest.fixture(scope="module")
def topic(new_topic: Callable[..., Topic]) -> Topic:
    made = new_topic(3)
    made.fill(RECORDS, timestamp=START)
    return made


def read(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(**topic.options(**options)).load()


def planned(rows: DataFrame) -> list[tuple[int, int]]:
    """The ranges of offsets that tasks would read."""
    leaf: Any = rows._jdf.queryExecution().sparkPlan().collectLeaves().head()  # type: ignore[operator]
    text = leaf.inputPartitions().mkString("\n")
    return [(int(a), int(b)) for a, b in re.findall(r"from=(\d+), until=(\d+)\]$", text, re.MULTILINE)]


# Batch: what is not asked for is not read


@pytest.mark.parametrize(
    ("where", "ranges"),
    [
        ("partition = 1", [(0, 300)]),
        ("partition in (0, 2) and offset >= 250", [(250, 300)] * 2),
        ("partition > 0 and offset < 7", [(0, 7)] * 2),
        ("offset between 10 and 19", [(10, 20)] * 3),
        ("partition = 7", []),
        ("offset < 0", []),
        ("timestamp >= timestamp_millis({start} + 600)", [(200, 300)] * 3),
        ("timestamp > timestamp_millis({start} + 5000)", []),
        ("partition = 0 or offset = 3", [(0, 300)] * 3),
    ],
)
def test_a_where_decides_what_is_read(
    spark: SparkSession, topic: Topic, where: str, ranges: list[tuple[int, int]]
) -> None:
    condition = where.format(start=START)
    rows = read(spark, topic).select("partition", "offset", "timestamp")
    assert planned(rows.where(condition)) == ranges
    # Collected first, so that it is Spark alone that filters.
    everything = spark.createDataFrame(rows.collect(), rows.schema)
    found, expected = rows.where(condition).collect(), everything.where(condition).collect()
    assert sorted(map(tuple, found)) == sorted(map(tuple, expected))


def test_counts_and_bounds_are_right(spark: SparkSession, topic: Topic) -> None:
    row = read(spark, topic).selectExpr("count(*)", "min(offset)", "max(offset)", "max(partition)").first()
    assert tuple(row or ()) == (RECORDS, 0, 299, 2)
    assert read(spark, topic).where("partition = 2 and offset >= 100").count() == 200


def test_a_batchs_range_is_fixed_when_it_is_planned(
    spark: SparkSession, new_topic: Callable[..., Topic]
) -> None:
    topic = new_topic(1)
    topic.fill(10)
    rows = read(spark, topic)
    assert planned(rows) == [(0, 10)]
    topic.fill(5, first=10)
    assert len(rows.collect()) == 10
    assert read(spark, topic).count() == 15


# Options


def test_strings_are_the_same_bytes(spark: SparkSession, topic: Topic) -> None:
    rows = read(spark, topic, keyType="string", valueType="string").select("key", "value", "offset")
    assert [field.dataType.simpleString() for field in rows.schema][:2] == ["string", "string"]
    cast = read(spark, topic).selectExpr("cast(key as string)", "cast(value as string)", "offset")
    assert sorted(map(str, rows.collect())) == sorted(map(str, cast.collect()))


@pytest.mark.parametrize("option", ["valueType", "keyType", "idleStrategy", "realTimeTasks", "mode"])
def test_a_wrong_value_names_its_option(spark: SparkSession, topic: Topic, option: str) -> None:
    with pytest.raises(Exception, match=option):
        read(spark, topic, **{option: "nonsense"}).collect()


def stream(spark: SparkSession, topic: Topic, checkpoint: Path, **options: str) -> list[Any]:
    """Reads what there is; what Spark says of each batch."""
    source = spark.readStream.format("penstock").options(**topic.options(**options))
    writer = source.option("startingOffsets", "earliest").load().writeStream.format("noop")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return [progress for progress in query.recentProgress if progress.numInputRows]


def test_bytes_limit_a_batch(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    """By the average record so far; the first batch reckons with 100 bytes."""
    batches = stream(spark, topic, tmp_path, maxBytesPerTrigger="30000")
    assert batches[0].numInputRows == 300
    assert len(batches) > 2
    assert sum(batch.numInputRows for batch in batches) == RECORDS


def test_memory_may_be_mounted_elsewhere(
    spark: SparkSession, shared_broker: BrokerProcess, topic: Topic, tmp_path: Path
) -> None:
    here = tmp_path / "mounted"
    here.symlink_to(shared_broker.shm_dir)
    option = "penstock.shm.dir"
    (pushed,) = stream(spark, topic, tmp_path / "a", mode="push", **{option: str(here)})
    assert pushed.sources[0].metrics["pushRecords"] == str(RECORDS)
    (pulled,) = stream(spark, topic, tmp_path / "b", **{option: str(tmp_path / "nowhere")})
    assert pulled.sources[0].metrics["pullRecords"] == str(RECORDS)


@pytest.fixture
def silent() -> Iterator[str]:
    """An address that nothing comes back from, as that of a machine that is gone: its queue is full."""
    with socket.socket() as door, contextlib.ExitStack() as callers:
        door.bind(("127.0.0.1", 0))
        door.listen(0)
        for _ in range(4):
            caller = callers.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(door.getsockname())
        yield f"127.0.0.1:{door.getsockname()[1]}"


def test_a_server_that_is_silent_holds_nobody_up(spark: SparkSession, topic: Topic, silent: str) -> None:
    servers = {"kafka.bootstrap.servers": f"{silent},{topic.servers}", "kafka.request.timeout.ms": "250000"}
    started = time.monotonic()
    assert len(read(spark, topic, **servers).select("value").collect()) == RECORDS
    assert time.monotonic() - started < 120


def test_new_partitions_join_a_running_query(
    spark: SparkSession, new_topic: Callable[..., Topic], tmp_path: Path
) -> None:
    topic = new_topic(1)
    topic.fill(10)
    got: list[tuple[int, int]] = []
    source = spark.readStream.format("penstock").options(**topic.options(startingOffsets="earliest"))
    writer = (
        source.load().select("partition", "offset").writeStream.trigger(processingTime="200 milliseconds")
    )
    writer = writer.foreachBatch(lambda batch, _: got.extend(tuple(row) for row in batch.collect()))
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        eventually(lambda: len(got) == 10, timeout=60)
        topic.add_partitions(3)
        topic.fill(9)
        eventually(lambda: len(got) == 19, timeout=60)
    finally:
        query.stop()
    assert sorted(got) == sorted(
        [(0, offset) for offset in range(13)] + [(p, o) for p in (1, 2) for o in range(3)]
    )


@pytest.mark.parametrize("idle", ["spin", "yield"])
def test_one_real_time_task_follows_every_partition(
    spark: SparkSession, topic: Topic, new_topic: Callable[..., Topic], tmp_path: Path, idle: str
) -> None:
    target = new_topic(1)
    options = topic.options(startingOffsets="earliest", idleStrategy=idle, realTimeTasks="1")
    rows = spark.readStream.format("penstock").options(**options).load().select("value")
    writer = rows.writeStream.format("penstock").outputMode("update").option("topic", target.name)
    writer = writer.option("kafka.bootstrap.servers", target.servers)
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(realTime="5 seconds")
    query = writer.start()
    try:
        eventually(lambda: read(spark, target).count() == RECORDS, timeout=60, interval=0.5)
    finally:
        query.stop()


# What it tells


def test_prometheus_hears_of_a_query(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    registry = CollectorRegistry()
    exporter = ProgressExporter(registry)
    spark.streams.addListener(exporter)
    try:
        source = spark.readStream.format("penstock").options(**topic.options(startingOffsets="earliest"))
        writer = observe_latency(source.load()).writeStream.format("noop").queryName("told")
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

        def figure(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"penstock_query_{name}", {"query": "told", **labels})

        eventually(lambda: figure("running") == 0, timeout=30)
        assert figure("rows_total") == RECORDS
        assert figure("read_records_total", way="push") == RECORDS
        assert figure("read_records_total", way="pull") == 0
        assert figure("offsets_behind_latest", statistic="max") == 0
        assert figure("change_overs_total") == 0
        assert figure("batch_seconds", phase="triggerExecution") is not None
        quantiles = [figure("latency_seconds", quantile=each) for each in ("0.5", "0.99", "1")]
        assert None not in quantiles
        oldest = (now_ms() - START) / 1000
        assert 0 < quantiles[0] <= quantiles[1] <= quantiles[2] <= oldest  # type: ignore[operator]
        assert oldest - 120 < quantiles[2]  # type: ignore[operator]
    finally:
        spark.streams.removeListener(exporter)


def test_a_real_time_query_tells_its_latency(
    spark: SparkSession, new_topic: Callable[..., Topic], tmp_path: Path
) -> None:
    source, target = new_topic(2), new_topic(1)
    source.fill(100)
    records = spark.readStream.format("penstock").options(**source.options(startingOffsets="earliest")).load()
    rows = observe_latency(records, real_time=True).select("value")
    writer = rows.writeStream.format("penstock").outputMode("update").option("topic", target.name)
    writer = writer.option("kafka.bootstrap.servers", target.servers)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(realTime="5 seconds").start()
    try:
        told: list[dict[str, float]] = []

        def is_told() -> bool:
            told[:] = filter(None, map(latencies, query.recentProgress))
            return bool(told)

        eventually(is_told, timeout=90, interval=0.5)
        assert set(told[0]) == {"0.5", "0.99", "1"}
        assert 0 <= told[0]["0.5"] <= told[0]["0.99"] <= told[0]["1"] < 300
    finally:
        query.stop()


@pytest.mark.parametrize("sink", ["penstock", "kafka"])
def test_a_topic_that_is_missing_is_made_by_the_first_record(
    sink: str, spark: SparkSession, shared_broker: BrokerProcess, request: pytest.FixtureRequest
) -> None:
    if sink == "kafka":
        request.getfixturevalue("kafka_source")
    at = {"kafka.bootstrap.servers": shared_broker.address}
    rows = spark.range(10).selectExpr("cast(id as string) as value")
    rows.write.format(sink).options(**at).option("topic", f"made-by-{sink}").save()
    back = spark.read.format("penstock").options(**at).option("subscribe", f"made-by-{sink}").load()
    assert sorted(int(row.value) for row in back.select("value").collect()) == list(range(10))
