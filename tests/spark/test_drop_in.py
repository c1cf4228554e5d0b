"""The same queries through Spark's own Kafka source and through ours, on the same topics: the same rows,
types and offsets."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from topics import Topic, now_ms, plain

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MODES = ("push", "pull")
START = now_ms() - 3_600_000  # retention would take records of long ago


@pytest.fixture(scope="module")
def topic(new_topic: Callable[..., Topic]) -> Topic:
    made = new_topic(3)
    made.fill(900, timestamp=START, headers=True)
    return made


def read(spark: SparkSession, source: str, options: dict[str, str]) -> DataFrame:
    return spark.read.format(source).options(**options).load()


def ours_by_mode(spark: SparkSession, options: dict[str, str]) -> Iterator[DataFrame]:
    return (read(spark, "penstock", {**options, "mode": mode}) for mode in MODES)


def assert_same_rows(spark: SparkSession, options: dict[str, str], count: int | None = None) -> None:
    """Spark's source reads once, ours by push and by pull."""
    theirs = read(spark, "kafka", options)
    rows = plain(theirs.collect())
    assert count is None or len(rows) == count
    for ours in ours_by_mode(spark, options):
        assert ours.schema == theirs.schema
        assert plain(ours.collect()) == rows


BATCH_OPTIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "defaults": lambda _: {},
    "headers": lambda _: {"includeHeaders": "true"},
    "pattern": lambda name: {"subscribe": None, "subscribePattern": name[:-1] + "."},
    "assign": lambda name: {"subscribe": None, "assign": {name: [0, 2]}},
    "offsets": lambda name: {
        "startingOffsets": {name: {"0": 7, "1": -2, "2": 150}},
        "endingOffsets": {name: {"0": 200, "1": 33, "2": -1}},
    },
    "timestamp": lambda _: {"startingTimestamp": str(START + 300), "endingTimestamp": str(START + 700)},
    "timestamps": lambda name: {
        "startingOffsetsByTimestamp": {name: {"0": START + 10, "1": START + 400, "2": START}},
        "endingOffsetsByTimestamp": {name: {"0": START + 500, "1": START + 10**9, "2": START + 600}},
    },
    "no timestamp": lambda _: {
        "startingTimestamp": str(START + 10**9),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "minPartitions": lambda _: {"minPartitions": "7"},
    "maxRecordsPerPartition": lambda _: {"maxRecordsPerPartition": "100"},
    "group": lambda _: {"groupIdPrefix": "mine", "kafka.fetch.min.bytes": "1"},
    "group id": lambda _: {"kafka.group.id": "mine", "failOnDataLoss": "false"},
    "patience": lambda _: {
        "kafkaConsumer.pollTimeoutMs": "20000",
        "fetchOffset.numRetries": "2",
        "fetchOffset.retryIntervalMs": "5",
    },
}


@pytest.mark.parametrize("options", BATCH_OPTIONS.values(), ids=BATCH_OPTIONS.keys())
def test_batch_gives_the_same_rows(
    spark: SparkSession, kafka_source: str, topic: Topic, options: Callable[[str], dict[str, Any]]
) -> None:
    assert_same_rows(spark, topic.options(**options(topic.name)))


def test_batch_is_cut_into_as_many_tasks(spark: SparkSession, kafka_source: str, topic: Topic) -> None:
    options = topic.options(minPartitions="7")
    wanted = read(spark, "kafka", options).rdd.getNumPartitions()
    assert [ours.rdd.getNumPartitions() for ours in ours_by_mode(spark, options)] == [wanted] * 2


def test_several_topics_give_the_same_rows(
    spark: SparkSession, kafka_source: str, topic: Topic, new_topic: Callable[..., Topic]
) -> None:
    second = new_topic(1)
    second.fill(20)
    assert_same_rows(spark, topic.options(subscribe=f"{topic.name},{second.name}"), 920)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_gives_the_same_rows(
    spark: SparkSession, kafka_source: str, new_topic: Callable[..., Topic], codec: str
) -> None:
    topic = new_topic(2)
    topic.fill(500, headers=True, **{"compression.type": codec})
    assert_same_rows(spark, topic.options(includeHeaders="true"), 500)


def test_broker_timestamps_are_told_apart(
    spark: SparkSession, kafka_source: str, new_topic: Callable[..., Topic]
) -> None:
    topic = new_topic(1, message_timestamp_type="LogAppendTime")
    topic.fill(50, timestamp=START)
    assert_same_rows(spark, topic.options(), 50)
    for ours in ours_by_mode(spark, topic.options()):
        assert {row.timestampType for row in ours.collect()} == {1}


def run_stream(
    spark: SparkSession, source: str, options: dict[str, str], checkpoint: Path
) -> tuple[list[tuple[Any, ...]], list[Any]]:
    """Reads what there is; returns the rows, and where each batch ended."""
    got: list[Any] = []
    rows = spark.readStream.format(source).options(**options).load()
    writer = rows.writeStream.foreachBatch(lambda batch, _id: got.extend(batch.collect()))
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    ends = [source.endOffset for progress in query.recentProgress for source in progress.sources]
    return plain(got), [json.loads(end) if isinstance(end, str) else end for end in ends]


STREAM_OPTIONS: dict[str, dict[str, Any]] = {
    "earliest": {"startingOffsets": "earliest"},
    "latest": {},
    "offsets": {"startingOffsets": {"TOPIC": {"0": 7, "1": -2, "2": -1}}, "failOnDataLoss": "false"},
    "assign": {"subscribe": None, "assign": {"TOPIC": [1]}, "startingOffsets": {"TOPIC": {"1": 100}}},
    "pattern": {"subscribe": None, "subscribePattern": "TOPIC", "startingTimestamp": str(START + 333)},
    "timestamps": {
        "startingOffsetsByTimestamp": {"TOPIC": {"0": START + 10, "1": START + 400, "2": START + 10**9}},
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "max": {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "250"},
    "min and max": {
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": "100",
        "maxOffsetsPerTrigger": "301",
        "maxTriggerDelay": "1s",
    },
    "headers": {
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "minPartitions": "5",
        "maxRecordsPerPartition": "70",
        "groupIdPrefix": "mine",
    },
}


@pytest.mark.parametrize("options", STREAM_OPTIONS.values(), ids=STREAM_OPTIONS.keys())
def test_a_stream_gives_the_same_rows_and_offsets(
    spark: SparkSession, kafka_source: str, topic: Topic, tmp_path: Path, options: dict[str, Any]
) -> None:
    asked = {name: value.replace("TOPIC", topic.name) for name, value in topic.options(**options).items()}
    theirs = run_stream(spark, "kafka", asked, tmp_path / "kafka")
    for mode in MODES:
        assert run_stream(spark, "penstock", {**asked, "mode": mode}, tmp_path / mode) == theirs


@pytest.mark.parametrize("first", ["kafka", "penstock"])
def test_a_checkpoint_changes_hands(
    spark: SparkSession,
    kafka_source: str,
    new_topic: Callable[..., Topic],
    tmp_path: Path,
    first: str,
) -> None:
    """A query begun with one source goes on with the other: nothing is lost, nothing comes twice."""
    second = "penstock" if first == "kafka" else "kafka"
    topic = new_topic(2)
    topic.fill(100)
    options = topic.options(startingOffsets="earliest")
    before, _ = run_stream(spark, first, options, tmp_path)
    topic.fill(60, first=100)
    after, _ = run_stream(spark, second, options, tmp_path)
    assert len(before) == 100
    assert len(after) == 60
    assert not set(map(str, before)) & set(map(str, after))


WRONG_OPTIONS: dict[str, dict[str, str | None]] = {
    "nothing to read": {"subscribe": None},
    "two ways": {"assign": '{"a":[0]}'},
    "starting at the end": {"startingOffsets": "latest"},
    "ending at the start": {"endingOffsets": "earliest"},
    "not JSON": {"startingOffsets": "somewhere"},
    "partitions left out": {"startingOffsets": '{"TOPIC":{"0":1}}'},
    "no record so late": {"startingTimestamp": str(START + 10**9)},
    "a setting of the source's own": {"kafka.auto.offset.reset": "latest"},
    "negative": {"minPartitions": "-3"},
}


@pytest.mark.parametrize("wrong", WRONG_OPTIONS.values(), ids=WRONG_OPTIONS.keys())
def test_what_the_one_refuses_the_other_refuses(
    spark: SparkSession, kafka_source: str, topic: Topic, wrong: dict[str, str | None]
) -> None:
    given = {key: value.replace("TOPIC", topic.name) if value else value for key, value in wrong.items()}
    options = {key: value for key, value in {**topic.options(), **given}.items() if value is not None}
    for source in ("kafka", "penstock"):
        with pytest.raises(Exception):  # noqa: B017, PT011 - of many kinds on Spark's side
            read(spark, source, options).collect()
