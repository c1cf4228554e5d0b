"""Push to pull, or to push from another broker's memory, and back under running queries: the leader dies and
its memory with it for the readers, a backup takes over, and leadership comes home."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from numbers_in import Numbers
from test_streams import start_real_time, written
from topics import Topic

from cluster import Cluster
from harness import eventually, promised

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

HOME, AWAY = 1, 2
COLUMNS = ("partition", "offset", "cast(value as string) as number")


def read_by(query: Any) -> tuple[int, int]:
    """Records by push and by pull, as the query's progress tells."""
    metrics = [each.sources[0].metrics for each in query.recentProgress]
    return (
        max((int(each["pushRecords"]) for each in metrics), default=0),
        max((int(each["pullRecords"]) for each in metrics), default=0),
    )


@pytest.mark.parametrize("mode", ["auto", "push"])
def test_queries_change_over_and_back_without_losing_or_repeating(
    spark: SparkSession, new_topic: Callable[..., Topic], tmp_path: Path, mode: str
) -> None:
    target = new_topic(1)
    got: list[tuple[Any, ...]] = []
    with Cluster(tmp_path / "cluster") as cluster:
        cluster.start()
        topic = Topic(cluster.bootstrap, "numbers", 3, replication=2)
        cluster.in_sync(topic.name, 2)
        homes = {partition: cluster.leader(topic.name, partition) for partition in range(3)}
        assert HOME in homes.values()
        # Where Spark may pull only one broker's memory is mounted: the other is on another machine to it.
        here = str(cluster.brokers[HOME].shm_dir) if mode == "auto" else None
        source = topic.options(startingOffsets="earliest", mode=mode, **{"penstock.shm.dir": here})
        rows = spark.readStream.format("penstock").options(**source).load()
        writer = rows.selectExpr(*COLUMNS).writeStream.trigger(processingTime="200 milliseconds")
        writer = writer.foreachBatch(lambda batch, _: got.extend(tuple(row) for row in batch.collect()))
        queries = [
            writer.option("checkpointLocation", str(tmp_path / "micro-batch")).start(),
            start_real_time(rows.select("value"), target, tmp_path / "real-time"),
        ]

        def grows(way: int, *, than: list[tuple[int, int]]) -> bool:
            return all(
                read_by(query)[way] > before[way] + 200 for query, before in zip(queries, than, strict=True)
            )

        try:
            with Numbers(topic) as produced:
                for leader, way in ((HOME, 0), (AWAY, int(mode == "auto")), (HOME, 0)):
                    if leader == AWAY:
                        cluster.brokers[HOME].kill()
                    elif cluster.brokers[HOME].process.poll() is not None:  # type: ignore[union-attr]
                        cluster.brokers[HOME].start()
                    expected = homes if leader == HOME else dict.fromkeys(homes, AWAY)
                    eventually(
                        lambda: {p: cluster.leader(topic.name, p) for p in homes} == expected,  # noqa: B023
                        timeout=60,
                        interval=0.2,
                    )
                    time.sleep(1)  # batches that were on their way are not what is looked at
                    before = [read_by(query) for query in queries]
                    eventually(lambda: grows(way, than=before), timeout=60, interval=0.3)  # noqa: B023
            expected_numbers = Counter(str(number) for number in produced.acknowledged)
            eventually(lambda: len(got) >= expected_numbers.total(), timeout=60, interval=0.2)
            eventually(lambda: written(spark, target).total() >= expected_numbers.total(), 60, 0.5)
            eventually(lambda: int(queries[1].lastProgress.sources[0].metrics["changeOvers"]) >= 2, 30, 0.5)
            if mode == "push":
                assert [read_by(query)[1] for query in queries] == [0, 0]
        finally:
            for query in queries:
                query.stop()
        assert [query.exception() for query in queries] == [None, None]
        read = Counter(number for _, _, number in got)
        promised(read == expected_numbers, "micro-batches read what was not acknowledged, or not once")
        places = Counter((partition, offset) for partition, offset, _ in got)
        promised(max(places.values()) == 1, "micro-batches read an offset twice")
        promised(written(spark, target) == expected_numbers, "the real-time query wrote something else")
