"""kill -9 of driver and executors at random points, under a query into files, whose sink is idempotent:
every record arrives once. PENSTOCK_KILL_ROUNDS says how often; brokers die in test_streams.py."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from numbers_in import Numbers
from standalone import StandaloneCluster
from topics import Topic

from harness import BrokerProcess, eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = int(os.environ.get("PENSTOCK_KILL_ROUNDS", "1"))
PATIENCE = 240.0
"""A busy machine takes minutes to start a driver and its executors."""

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(PATIENCE * (ROUNDS + 2)),
    pytest.mark.skipif(
        "PENSTOCK_KILL_ROUNDS" not in os.environ, reason="minutes long: set PENSTOCK_KILL_ROUNDS"
    ),
]

DRIVER = """
import sys
from penstock.spark import session
master, servers, directory = sys.argv[1:]
confs = {"spark.ui.enabled": False, "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
spark = session("killed", master, **confs)
rows = spark.readStream.format("penstock").option("kafka.bootstrap.servers", servers)
rows = rows.option("subscribe", "numbers").option("startingOffsets", "earliest").load()
rows = rows.selectExpr("partition", "offset", "cast(cast(value as string) as long) as number")
writer = rows.writeStream.format("parquet").option("path", directory + "/out")
writer = writer.option("checkpointLocation", directory + "/checkpoint")
writer.trigger(processingTime="300 milliseconds").start().awaitTermination()
"""


class Query:
    """A driver in a process of its own, and the files it writes."""

    def __init__(self, directory: Path, servers: str) -> None:
        self._directory = directory
        self._servers = servers

    @contextlib.contextmanager
    def running(self, master: str) -> Iterator[None]:
        """The driver dies at the end, by kill -9."""
        command = [sys.executable, "-c", DRIVER, master, self._servers, str(self._directory)]
        with (self._directory / "driver.log").open("ab") as log:
            driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield
        finally:
            # The session of the driver: python, and the JVM it started.
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def await_commit(self) -> None:
        before = self._commits()
        eventually(lambda: self._commits() > before, timeout=PATIENCE, interval=0.1)

    def _commits(self) -> int:
        return len(list(self._directory.glob("checkpoint/commits/[0-9]*")))

    def await_numbers(self, spark: SparkSession, expected: Counter[int]) -> None:
        eventually(lambda: self._numbers(spark) == expected, timeout=PATIENCE, interval=2)

    def _numbers(self, spark: SparkSession) -> Counter[int]:
        rows = spark.read.parquet(str(self._directory / "out")).select("number").collect()
        return Counter(row.number for row in rows)


@pytest.fixture
def topic(tmp_path: Path) -> Iterator[Topic]:
    with BrokerProcess(tmp_path / "broker") as broker:
        broker.start()
        yield Topic(broker.address, "numbers", 3)


def test_a_driver_killed_at_random_writes_every_record_once(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    """Driver and executor are one process here; the next one goes on from the checkpoint."""
    query = Query(tmp_path, topic.servers)
    with Numbers(topic) as produced:
        for _ in range(ROUNDS):
            with query.running("local[2]"):
                query.await_commit()
                time.sleep(random.uniform(0, 1.5))
    with query.running("local[2]"):
        query.await_numbers(spark, Counter(produced.acknowledged))


def test_an_executor_killed_at_random_writes_every_record_once(
    spark: SparkSession, tmp_path: Path, topic: Topic
) -> None:
    """Its tasks run again in another executor, which maps the log afresh; the query goes on."""
    query = Query(tmp_path, topic.servers)
    with StandaloneCluster(tmp_path / "cluster") as cluster, query.running(cluster.master):
        with Numbers(topic) as produced:
            for _ in range(ROUNDS):
                query.await_commit()
                time.sleep(random.uniform(0, 1.5))
                executors = cluster.executors()
                assert executors
                random.choice(executors).kill()
            query.await_commit()
        query.await_numbers(spark, Counter(produced.acknowledged))
