"""kill -9 of driver, executors and broker at random points, under a query into sinks that are idempotent:
every record arrives once. PENSTOCK_KILL_ROUNDS says how often."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from killed_query import COLUMNS, PATIENCE, SINKS, Query
from numbers_in import Numbers
from standalone import StandaloneCluster
from topics import Topic

from harness import BrokerProcess, eventually, promised

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = int(os.environ.get("PENSTOCK_KILL_ROUNDS", "1"))

pytestmark = [pytest.mark.spark, pytest.mark.timeout(PATIENCE * (ROUNDS + 2))]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "broker") as process:
        yield process.start()


@pytest.fixture
def topic(broker: BrokerProcess) -> Topic:
    return Topic(broker.address, "numbers", 3)


def wait_at_random() -> None:
    time.sleep(random.uniform(0, 1.5))


def everything(spark: SparkSession, topic: Topic) -> Counter[tuple[int, int, int]]:
    """What the log holds, read without Penstock's memory."""
    rows = spark.read.format("penstock").options(**topic.options(mode="pull")).load()
    return Counter(tuple(row) for row in rows.selectExpr(*COLUMNS).collect())


def assert_once(spark: SparkSession, topic: Topic, query: Query, acknowledged: list[int]) -> None:
    """Compared record by record: what was acknowledged, what the log holds, what each sink has."""
    log = everything(spark, topic)
    held = Counter(number for _, _, number in log.elements())
    promised(held == Counter(acknowledged), "the log doesn't hold what was acknowledged")
    for sink in SINKS:
        promised(query.rows(spark, sink) == log, f"{sink} doesn't have what the log holds")


def test_a_driver_killed_at_random_writes_every_record_once(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    """Driver and executor are one process here; the next one goes on from the checkpoint."""
    query = Query(tmp_path, topic)
    with Numbers(topic) as produced:
        for _ in range(ROUNDS):
            with query.running():
                query.await_commit()
                wait_at_random()
    with query.running():
        query.await_end()
    assert_once(spark, topic, query, produced.acknowledged)


def test_an_executor_killed_at_random_writes_every_record_once(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    """Its tasks run again in another executor; the worker starts a new one, which maps the log afresh."""
    query = Query(tmp_path, topic)
    with StandaloneCluster(tmp_path / "cluster") as cluster, query.running(cluster.master):
        with Numbers(topic) as produced:
            query.await_commit()
            for _ in range(ROUNDS):
                eventually(lambda: len(cluster.executors()) == 2, timeout=PATIENCE, interval=0.1)
                wait_at_random()
                random.choice(cluster.executors()).kill()
                query.await_commit()
        query.await_end()
    assert_once(spark, topic, query, produced.acknowledged)


def test_a_broker_killed_at_random_costs_no_record(
    spark: SparkSession, tmp_path: Path, topic: Topic, broker: BrokerProcess
) -> None:
    query = Query(tmp_path, topic)
    with query.running():
        with Numbers(topic) as produced:
            for _ in range(ROUNDS):
                query.await_commit()
                wait_at_random()
                broker.kill()
                broker.start()
        query.await_end()
    assert_once(spark, topic, query, produced.acknowledged)


def test_a_broker_that_loses_its_memory_repeats_no_record(
    spark: SparkSession, tmp_path: Path, topic: Topic, broker: BrokerProcess
) -> None:
    """Its last records may be lost with it, before or after they were read (acknowledged by memory alone, and
    there is no other replica); but what the log still holds is there once, and nothing is there twice."""
    query = Query(tmp_path, topic)
    with query.running():
        with Numbers(topic, idempotent=False) as produced:
            for _ in range(ROUNDS):
                query.await_commit()
                wait_at_random()
                broker.kill()
                broker.lose_memory()
                broker.start()
                before = len(produced.acknowledged)
                eventually(lambda: len(produced.acknowledged) > before + 100, timeout=60)  # noqa: B023
        query.await_end()
    log = everything(spark, topic)
    for sink in SINKS:
        rows = query.rows(spark, sink)
        promised(not log - rows, f"{sink} lacks what the log holds")
        places = Counter((partition, offset) for partition, offset, _ in rows.elements())
        twice = [place for place, times in places.items() if times > 1]
        promised(not twice, f"{sink} has twice: {twice[:5]}")
