"""Streams from end to end on a real broker: the sink, real time, and brokers that die under a query."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from numbers_in import Numbers
from topics import Topic

from harness import BrokerProcess, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def read(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(**topic.options(**options)).load()


def written(spark: SparkSession, topic: Topic) -> Counter[str]:
    rows = read(spark, topic).selectExpr("cast(value as string) as value").collect()
    return Counter(row.value for row in rows)


# The sink


def test_a_batch_write_needs_no_mode_and_keeps_every_column(
    spark: SparkSession, new_topic: Callable[..., Topic]
) -> None:
    topic = new_topic(3)
    rows = spark.createDataFrame(
        [("k1", b"v1", [("h", b"1"), ("n", None)], 2), (None, b"v2", None, 1), ("k3", None, [], 0)],
        "key string, value binary, headers array<struct<key string, value binary>>, partition int",
    )
    rows.write.format("penstock").options(
        **{"kafka.bootstrap.servers": topic.servers, "topic": topic.name}
    ).save()
    found = {row.partition: row for row in read(spark, topic, includeHeaders="true").collect()}
    assert (bytes(found[2].key), bytes(found[2].value)) == (b"k1", b"v1")
    assert [(h.key, h.value and bytes(h.value)) for h in found[2].headers] == [("h", b"1"), ("n", None)]
    assert (found[1].key, bytes(found[1].value), found[1].headers) == (None, b"v2", None)
    assert found[0].value is None


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_keys_land_where_kafka_puts_them(
    spark: SparkSession, kafka_source: str, new_topic: Callable[..., Topic], codec: str
) -> None:
    rows = spark.range(500).selectExpr("concat('key', id * 7919) as key", "cast(id as string) as value")
    placed = []
    for sink in ("kafka", "penstock"):
        topic = new_topic(5)
        options = {
            "kafka.bootstrap.servers": topic.servers,
            "topic": topic.name,
            "kafka.compression.type": codec,
        }
        rows.write.format(sink).options(**options).save()
        found = read(spark, topic).selectExpr("cast(key as string) key", "partition").collect()
        placed.append({row.key: row.partition for row in found})
    assert len(placed[1]) == 500
    assert placed[1] == placed[0]


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_a_stream_is_written_as_kafkas_sink_writes_it(
    spark: SparkSession, kafka_source: str, new_topic: Callable[..., Topic], tmp_path: Path, mode: str
) -> None:
    source = new_topic(2)
    source.fill(100)
    asked = source.options(startingOffsets="earliest", maxOffsetsPerTrigger="60")
    results = []
    for sink in ("kafka", "penstock"):
        target = new_topic(1)
        rows = spark.readStream.format("penstock").options(**asked).load()
        if mode != "append":
            rows = rows.groupBy("key").count().selectExpr("key", "cast(count as string) as value")
        # The column says the topic, as the option does elsewhere.
        rows = rows.selectExpr("key", "value", f"'{target.name}' as topic")
        writer = rows.writeStream.format(sink).option("kafka.bootstrap.servers", target.servers)
        writer = writer.option("checkpointLocation", str(tmp_path / sink)).outputMode(mode)
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
        found = read(spark, target).selectExpr("cast(key as string)", "cast(value as string)").collect()
        results.append(Counter(map(tuple, found)))
    assert results[0].total() == (100 if mode == "append" else 24)
    assert results[1] == results[0]


@pytest.mark.parametrize(("mode", "fits"), [("append", True), ("error", True), ("overwrite", False)])
def test_save_takes_the_modes_that_kafkas_sink_takes(
    spark: SparkSession, kafka_source: str, new_topic: Callable[..., Topic], mode: str, fits: bool
) -> None:
    topic = new_topic(1)
    options = {"kafka.bootstrap.servers": topic.servers, "topic": topic.name}
    for sink in ("kafka", "penstock"):
        writer = spark.range(3).selectExpr("cast(id as string) as value").write.format(sink)
        save = writer.options(**options).mode(mode).save
        if fits:
            save()
        else:
            with pytest.raises(Exception, match=r"(?i)overwrite"):
                save()
    assert read(spark, topic).count() == (6 if fits else 0)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ("cast(id as string) as text", {"topic": "t"}, "'value' not found"),
        ("cast(id as string) as value", {}, "topic option required"),
        ("id as value", {"topic": "t"}, "must be string or binary"),
        ("cast(id as string) as value", {"topic": "t", "tpoic": "t"}, "Unknown option 'tpoic'"),
    ],
)
def test_a_wrong_write_says_what_is_wrong(
    spark: SparkSession, new_topic: Callable[..., Topic], columns: str, options: dict[str, str], message: str
) -> None:
    writer = spark.range(3).selectExpr(columns).write.format("penstock").options(**options)
    with pytest.raises(Exception, match=message):
        writer.option("kafka.bootstrap.servers", "127.0.0.1:1").save()


# Real time


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_real_time_passes_every_record_on(
    spark: SparkSession, new_topic: Callable[..., Topic], tmp_path: Path, mode: str
) -> None:
    """Six partitions on two tasks: none is left unread."""
    source, target = new_topic(6), new_topic(2)
    rows = (
        spark.readStream.format("penstock")
        .options(**source.options(startingOffsets="earliest", mode=mode))
        .load()
    )
    query = start_real_time(rows.selectExpr("key", "value"), target, tmp_path)
    try:
        numbers = source.fill(3000)
        expected = Counter(None if i % 97 == 13 else f"value {i} of the topic {source.name}" for i in numbers)
        eventually(lambda: written(spark, target) == expected, timeout=40, interval=1)
    finally:
        query.stop()


def start_real_time(rows: DataFrame, target: Topic, checkpoint: Path) -> Any:
    writer = rows.writeStream.format("penstock").outputMode("update").option("topic", target.name)
    writer = writer.option("kafka.bootstrap.servers", target.servers)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(realTime="5 seconds").start()


# Brokers that die


def test_real_time_goes_on_when_the_broker_comes_back(
    spark: SparkSession, new_topic: Callable[..., Topic], tmp_path: Path
) -> None:
    """From push to pull and back inside a running task: nothing is lost, nothing comes twice."""
    target = new_topic(1)
    with BrokerProcess(tmp_path / "broker") as broker:
        broker.start()
        topic = Topic(broker.address, "numbers", 3)
        rows = spark.readStream.format("penstock").options(**topic.options(startingOffsets="earliest")).load()
        query = start_real_time(rows.selectExpr("value"), target, tmp_path / "checkpoint")
        try:
            with Numbers(topic) as produced:
                time.sleep(4)
                broker.kill()
                time.sleep(1.5)
                broker.start()
                before = len(produced.acknowledged)
                eventually(lambda: len(produced.acknowledged) > before + 100, timeout=30)
            expected = Counter(str(number) for number in produced.acknowledged)
            eventually(lambda: written(spark, target) == expected, timeout=40, interval=1)
            # Told when the batch ends, which was on its way when the broker died.
            eventually(lambda: change_overs(query) > 0, timeout=40, interval=0.5)
        finally:
            query.stop()


def change_overs(query: Any) -> int:
    return max((int(each.sources[0].metrics["changeOvers"]) for each in query.recentProgress), default=0)
