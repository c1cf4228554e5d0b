"""What a WHERE says of keys and values is looked for where records lie, before Spark has them: batches."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from topics import Topic, plain

from harness import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

RECORDS = 6_000
ALPHABET = "ab\u00e9"
"""Few letters, so that the beginnings and ends of what is looked for are everywhere."""


def text(numbers: random.Random, most: int) -> str:
    return "".join(numbers.choices(ALPHABET, k=numbers.randrange(most)))


@pytest.fixture(scope="module")
def topic(new_topic: Callable[..., Topic]) -> Topic:
    """Records of all lengths, some without key or value, in batches of every codec."""
    made: Topic = new_topic(2)
    numbers = random.Random(7)
    for codec in ("none", "lz4", "none", "gzip", "zstd", "snappy"):
        producer = Producer({"bootstrap.servers": made.servers, "compression.type": codec, "linger.ms": 20})
        for number in range(RECORDS // 6):
            producer.produce(
                made.name,
                None if number % 17 == 3 else text(numbers, 60) + ("needle" if number % 50 == 1 else ""),
                None if number % 5 == 3 else text(numbers, 4),
                partition=number % 2,
                headers=[("number", str(number).encode())] if number % 3 else None,
            )
            producer.poll(0)
        assert producer.flush(60) == 0
    return made


def read(spark: SparkSession, topic: Topic, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(**topic.options(includeHeaders="true", **options)).load()


def pushed(rows: DataFrame) -> str:
    leaf: Any = rows._jdf.queryExecution().sparkPlan().collectLeaves().head()  # type: ignore[operator]
    return str(leaf.scan().description())


def rows_read(rows: DataFrame) -> int:
    """How many rows Spark got from the source."""
    rows.collect()
    plan: Any = rows._jdf.queryExecution().executedPlan()  # type: ignore[operator]
    return int(plan.collectLeaves().head().metrics().apply("numOutputRows").value())


def check(spark: SparkSession, rows: DataFrame, *conditions: str) -> None:
    everything = spark.createDataFrame(rows.collect(), rows.schema)  # of this Spark alone filters
    for where in conditions:
        found, expected = plain(rows.where(where).collect()), plain(everything.where(where).collect())
        assert sorted(map(repr, found)) == sorted(map(repr, expected)), where


@pytest.mark.parametrize("mode", ["push", "pull"])
@pytest.mark.parametrize("kind", ["string", "binary"])
def test_all_that_is_wanted_is_found(spark: SparkSession, topic: Topic, kind: str, mode: str) -> None:
    rows = read(spark, topic, mode=mode, valueType=kind, keyType=kind)
    numbers = random.Random(11)
    conditions = []
    for shape in ("'%{}%'", "'{}%'", "'%{}'"):
        for length in (1, 2, 3, 5, 8, 9):
            looked_for = shape.format("".join(numbers.choices(ALPHABET, k=length)))
            conditions.append(f"cast(value as string) like {looked_for}")
            assert looked_for in pushed(rows.where(conditions[-1]))
    check(spark, rows, *conditions)


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("cast(key as string) = 'ab'", "CAST(key AS string) = 'ab'"),
        ("key = X'6162'", "key = "),
        ("value <=> X''", "value"),
        ("cast(value as string) like '%needle' and cast(key as string) like 'a%'", "LIKE 'a%'"),
        ("contains(cast(value as string), '')", "LIKE '%%'"),
        ("cast(value as string) like '%needle%' and partition = 1 and offset >= 700", "LIKE '%needle%'"),
        ("cast(value as string) like '%\ufffd%'", "LIKE"),
        # Spark alone filters.
        ("cast(value as string) not like '%needle%'", "[]"),
        ("cast(value as string) like '%needle%' or offset < 5", "[]"),
        ("cast(value as string) collate UTF8_LCASE like '%NEEDLE%'", "[]"),
        ("value is null", "[]"),
    ],
)
def test_every_way_to_ask(spark: SparkSession, topic: Topic, where: str, told: str) -> None:
    rows = read(spark, topic, mode="push")
    assert told in pushed(rows.where(where))
    check(spark, rows, where)


def test_bytes_that_are_no_text(spark: SparkSession, new_topic: Callable[..., Topic]) -> None:
    """What Spark makes of them when it takes them for a string is what counts."""
    made: Topic = new_topic(1)
    producer = Producer({"bootstrap.servers": made.servers})
    for value in (b"\xff", b"a\xffb", b"a\xef\xbf\xbdb", b"ab", b"\xc3"):
        producer.produce(made.name, value)
    assert producer.flush(60) == 0
    rows = read(spark, made).select("value", "offset")
    check(
        spark,
        rows,
        "cast(value as string) like '%\ufffd%'",
        "cast(value as string) = cast(X'FF' as string)",
        "cast(value as string) like '%b'",
        "value = X'C3'",
    )


def test_spark_gets_only_what_is_wanted(spark: SparkSession, topic: Topic) -> None:
    few = read(spark, topic).where("cast(value as string) like '%needle%'")
    assert rows_read(few) == len(few.collect()) == 114
    none = read(spark, topic).where("cast(value as string) like '%nothing has it%'")
    assert rows_read(none) == 0


def test_looking_ends_where_most_is_wanted(spark: SparkSession, tmp_path: Path) -> None:
    """Spark filters anyway: looking twice at all would be a waste. Nothing is lost by it."""
    with BrokerProcess(tmp_path / "broker") as broker:
        broker.start()
        made = Topic(broker.address, "most", 1)
        producer = Producer({"bootstrap.servers": made.servers, "linger.ms": 20})
        for number in range(150_000):
            producer.produce(made.name, "rare" if number % 10 == 0 else "common")
            producer.poll(0)
        assert producer.flush(60) == 0
        rows = read(spark, made).where("cast(value as string) like '%common%'")
        assert len(rows.collect()) == 135_000
        assert 135_000 < rows_read(rows) < 150_000
