"""One SparkSession for all tests here, with Spark's own Kafka source beside ours to compare with."""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from harness import BrokerProcess

sys.path.insert(0, str(Path(__file__).parent))

pytest.importorskip("pyspark")

from topics import Topic

from penstock.spark import session
from penstock.spark.kafka_source import KafkaJarsMissing, kafka_jars


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    confs: dict[str, object] = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
    }
    with contextlib.suppress(KafkaJarsMissing):  # then the tests that compare are skipped
        confs["spark.jars"] = ",".join(map(str, kafka_jars()))
    spark = session("penstock-tests", "local[4]", **confs)
    spark.sparkContext.setLogLevel("ERROR")
    yield spark
    spark.stop()


@pytest.fixture(scope="module")
def new_topic(shared_broker: BrokerProcess) -> Callable[..., Topic]:
    """Makes a topic of the test's own on the module's broker."""

    def make(partitions: int = 3, **config: str) -> Topic:
        return Topic(shared_broker.address, f"t-{uuid.uuid4().hex[:12]}", partitions, config)

    return make


@pytest.fixture(scope="session")
def kafka_source(spark: SparkSession) -> str:
    """The name of Spark's own source; skips where its jars can't be had."""
    try:
        kafka_jars()
    except KafkaJarsMissing as missing:
        pytest.skip(str(missing))
    return "kafka"
