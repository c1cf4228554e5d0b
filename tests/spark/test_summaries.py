"""COUNT, MIN and MAX in batch queries, and statistics: offsets alone answer where every offset has its
record, the headers of batches elsewhere, and both are exact."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from topics import Topic

from harness import BrokerProcess, eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FIGURES = ("count(*)", "count(offset)", "min(offset)", "max(offset)", "min(partition)", "max(partition)")
RECORDS = 900


@pytest.fixture(scope="module")
def topic(new_topic: Callable[..., Topic]) -> Topic:
    made = new_topic(3)
    made.fill(RECORDS)
    return made


def read(spark: SparkSession, topic: Topic, **options: Any) -> DataFrame:
    return spark.read.format("penstock").options(**topic.options(**options)).load()


def figures(rows: DataFrame) -> tuple[Any, ...]:
    return tuple(rows.selectExpr(*FIGURES).first() or ())


def counted(rows: DataFrame) -> tuple[Any, ...]:
    """The same from the records themselves."""
    places = [(row.partition, row.offset) for row in rows.select("partition", "offset").collect()]
    offsets, partitions = [offset for _, offset in places], [partition for partition, _ in places]
    bounds = [(min(each, default=None), max(each, default=None)) for each in (offsets, partitions)]
    return (len(places), len(places), *bounds[0], *bounds[1])


def tasks_look(rows: DataFrame) -> bool:
    """Whether tasks read the log for it, by its plan."""
    plan = rows.selectExpr(*FIGURES)._jdf.queryExecution().sparkPlan().toString()  # type: ignore[operator]
    assert ("LocalTableScan" in plan) != ("BatchScan" in plan), plan
    return "BatchScan" in plan


@pytest.mark.parametrize(
    "where",
    ["true", "partition = 1", "partition > 0 and offset < 7", "offset between 10 and 19", "partition = 7"],
)
def test_offsets_alone_answer(spark: SparkSession, topic: Topic, where: str) -> None:
    rows = read(spark, topic).where(where)
    assert figures(rows) == counted(rows)
    assert not tasks_look(rows)


@pytest.mark.parametrize("mode", ["auto", "pull"])
def test_groups_are_summed_up_one_by_one(spark: SparkSession, topic: Topic, mode: str) -> None:
    """By pull the broker isn't asked what it knows of its log: tasks look, and find the same."""
    rows = read(spark, topic, mode=mode).where("partition != 1 or offset < 250")
    found = rows.groupBy("partition").agg({"offset": "max", "*": "count"}).collect()
    expected: dict[int, int] = defaultdict(int)
    for row in rows.collect():
        expected[row.partition] += 1
    assert {row.partition: (row["count(1)"], row["max(offset)"] + 1) for row in found} == {
        partition: (count, count) for partition, count in expected.items()
    }
    assert [tuple(row) for row in rows.groupBy("topic").count().collect()] == [
        (topic.name, sum(expected.values()))
    ]


def test_what_offsets_dont_tell_is_read(spark: SparkSession, topic: Topic) -> None:
    rows = read(spark, topic)
    values = [row.value for row in rows.collect()]
    asked = rows.selectExpr("count(value)", "count(distinct partition)", "count(*)").first()
    assert tuple(asked or ()) == (sum(value is not None for value in values), 3, RECORDS)
    long = "length(value) > 35"
    assert rows.where(long).count() == sum(value is not None and len(value) > 35 for value in values)


def test_records_that_were_deleted_dont_count(spark: SparkSession, new_topic: Callable[..., Topic]) -> None:
    topic = new_topic(2)
    topic.fill(100)
    topic.delete_records(0, before=20)
    rows = read(spark, topic)
    assert figures(rows) == counted(rows) == (80, 80, 0, 49, 0, 1)
    assert not tasks_look(rows)
    early = {"startingOffsets": {topic.name: {"0": 5, "1": 0}}}
    with pytest.raises(Exception, match="failOnDataLoss"):
        figures(read(spark, topic, **early))
    assert figures(read(spark, topic, failOnDataLoss="false", **early)) == (80, 80, 0, 49, 0, 1)


def test_compacted_offsets_dont_count(spark: SparkSession, tmp_path: Path) -> None:
    with BrokerProcess(
        tmp_path / "broker", environment={"PENSTOCK_RETENTION_CHECK_SECONDS": "0.2"}
    ) as broker:
        broker.start()
        compact = {"cleanup_policy": "compact", "segment_bytes": "65536", "min_cleanable_dirty_ratio": "0.01"}
        topic = Topic(broker.address, "compacted", 2, compact)
        producer = Producer({"bootstrap.servers": topic.servers})
        for number in range(12_000):
            producer.produce(topic.name, b"x" * 100, b"key-%d" % (number % 50), partition=number % 2)
            if number % 500 == 499:  # many batches, and so segments: the newest is never cleaned
                assert producer.flush(60) == 0
        rows = read(spark, topic)
        eventually(lambda: rows.count() < 11_000, timeout=60, interval=0.3)
        assert tasks_look(rows)
        # It may go on cleaning between two looks.
        eventually(lambda: figures(rows) == counted(rows), timeout=60)


@pytest.mark.parametrize("loses_memory", [False, True], ids=["memory kept", "memory lost"])
def test_a_broker_that_came_back_is_not_taken_at_its_offsets(
    spark: SparkSession, tmp_path: Path, loses_memory: bool
) -> None:
    """One that lost its memory goes on above all offsets that it may have shown: that gap is empty."""
    with BrokerProcess(tmp_path / "broker") as broker:
        broker.start()
        topic = Topic(broker.address, "t", 2)
        topic.fill(100)
        broker.kill()
        if loses_memory:
            broker.lose_memory()
        broker.start()
        topic.fill(50)
        rows = read(spark, topic)
        assert figures(rows) == counted(rows)
        assert tasks_look(rows)


# Statistics


def size_of(plan: Any) -> tuple[int, int | None]:
    statistics = plan.collectLeaves().head().stats()
    rows = statistics.rowCount()
    return int(str(statistics.sizeInBytes())), int(str(rows.get())) if rows.isDefined() else None


def test_a_batchs_size_is_known_and_never_too_small(spark: SparkSession, topic: Topic) -> None:
    rows = read(spark, topic)
    payload = sum(len(row.value or b"") + len(row.key or b"") for row in rows.collect())
    spark.conf.set("spark.sql.cbo.enabled", True)  # else Spark doesn't ask for rows
    try:
        size, count = size_of(rows._jdf.queryExecution().optimizedPlan())  # type: ignore[operator]
    finally:
        spark.conf.unset("spark.sql.cbo.enabled")
    assert count == RECORDS
    assert payload < size < 5 * payload
    numbers, _ = size_of(rows.select("offset")._jdf.queryExecution().optimizedPlan())  # type: ignore[operator]
    assert 8 * RECORDS <= numbers < payload


def test_a_streams_size_is_not(spark: SparkSession, topic: Topic, tmp_path: Path) -> None:
    """A stream that looks small would be sent to every executor when it is joined."""
    stream = spark.readStream.format("penstock").options(**topic.options(startingOffsets="earliest")).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query: Any = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    plan = query._jsq.streamingQuery().lastExecution().optimizedPlan()
    assert size_of(plan)[0] > 1 << 40
