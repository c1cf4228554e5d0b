"""What becomes of a query whose topic changes under it: offsets gone by retention, a topic made again, new
partitions. Through Spark's own Kafka source and through ours, on the same topic: both fail, or both go on
with the same rows and offsets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_drop_in import run_stream
from topics import Topic

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def retention_takes_unread_records(topic: Topic) -> None:
    topic.fill(100, first=100)
    topic.delete_records(0, before=80)


def made_again_with_less(topic: Topic) -> None:
    topic.make_again()
    topic.fill(60)


def made_again_with_more(topic: Topic) -> None:
    topic.make_again()
    topic.fill(160)


def partitions_are_added(topic: Topic) -> None:
    topic.add_partitions(4)
    topic.fill(40, first=100)


def retention_takes_new_partitions_first_records(topic: Topic) -> None:
    partitions_are_added(topic)
    topic.delete_records(3, before=4)


@pytest.mark.parametrize("fail", ["true", "false"], ids=["fails", "goes on"])
@pytest.mark.parametrize(
    "change",
    [
        retention_takes_unread_records,
        made_again_with_less,
        made_again_with_more,
        partitions_are_added,
        retention_takes_new_partitions_first_records,
    ],
)
def test_both_sources_take_a_change_alike(
    spark: SparkSession,
    kafka_source: str,
    new_topic: Callable[..., Topic],
    tmp_path: Path,
    change: Callable[[Topic], None],
    fail: str,
) -> None:
    topic = new_topic(2)
    topic.fill(100)
    options = topic.options(startingOffsets="earliest", failOnDataLoss=fail)

    def run(source: str) -> Any:
        try:
            return run_stream(spark, source, options, tmp_path / source)
        except Exception as error:
            return "failOnDataLoss" in str(error)

    sources = ("kafka", "penstock")
    before = [run(source) for source in sources]
    assert len(before[0][0]) == 100
    assert before[0] == before[1]
    change(topic)
    after = dict(zip(sources, map(run, sources), strict=True))
    assert after["penstock"] == after["kafka"]
