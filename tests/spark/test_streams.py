"""Streams from end to end on a real broker: the sink, real time, and brokers that die under a query."""

from __future__ import annotations

import os
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

ROUNDS = int(os.environ.get("PENSTOCK_KILL_ROUNDS", "1"))


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


@pytest.mark.parametrize("loses_memory", [False, True], ids=["memory kept", "memory lost"])
def test_a_broker_killed_under_a_query_loses_and_repeats_nothing(
    spark: SparkSession, tmp_path: Path, loses_memory: bool
) -> None:
    """Compared record by record with what the log holds in the end. A machine that loses its memory may lose
    its last records, and an idempotent producer stops for good when it sees that."""
    got: list[tuple[int, int, int]] = []
    columns = ["partition", "offset", "cast(cast(value as string) as long) as number"]
    with BrokerProcess(tmp_path / "broker") as broker:
        broker.start()
        topic = Topic(broker.address, "numbers", 3)
        rows = spark.readStream.format("penstock").options(**topic.options(startingOffsets="earliest")).load()
        writer = rows.selectExpr(*columns).writeStream.trigger(processingTime="200 milliseconds")
        writer = writer.foreachBatch(lambda batch, _: got.extend(tuple(row) for row in batch.collect()))
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            with Numbers(topic, idempotent=not loses_memory) as produced:
                for _ in range(ROUNDS):
                    time.sleep(3)
                    broker.kill()
                    if loses_memory:
                        broker.lose_memory()
                    broker.start()
                    before = len(produced.acknowledged)
                    eventually(lambda: len(produced.acknowledged) > before + 100, timeout=30)  # noqa: B023
            log = {tuple(row) for row in read(spark, topic, mode="pull").selectExpr(*columns).collect()}
            eventually(lambda: log <= set(got), timeout=40, interval=0.2)
            progress = query.lastProgress.sources[0].metrics
        finally:
            query.stop()
        assert query.exception() is None
    places = Counter((partition, offset) for partition, offset, _number in got)
    assert [place for place, times in places.items() if times > 1] == []
    assert int(progress["pushRecords"]) > 0
    if not loses_memory:
        assert Counter(number for _, _, number in got) == Counter(produced.acknowledged)


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
