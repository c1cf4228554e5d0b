"""The jobs of spark-jobs/, run as a user runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from standalone import SPARK_HOME, StandaloneCluster
from topics import Topic

from harness import eventually
from penstock.spark import jar_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

JOBS = Path(__file__).parents[2] / "spark-jobs"
NAMES = ["count", "filter", "word_count", "windowed_word_count", "route", "stateful", "replay", "archive"]


def run(name: str, *arguments: str, launcher: Sequence[str] = (sys.executable,)) -> str:
    command = [*launcher, str(JOBS / f"{name}.py"), *arguments]
    # What spark-submit starts as "python3" is this Python.
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_every_job_explains_itself(name: str) -> None:
    text = run(name, "--help")
    assert "--source" in text
    assert "--mode" in text


def test_count_counts(new_topic: Callable[..., Topic]) -> None:
    topic = new_topic(2)
    topic.fill(1000)
    out = run("count", "--servers", topic.servers, "--topic", topic.name, "--once", "--master", "local[2]")
    assert out.count("|  500|") == 2


def test_a_job_runs_by_spark_submit_on_a_standalone_cluster(
    new_topic: Callable[..., Topic], tmp_path: Path
) -> None:
    topic = new_topic(2)
    topic.fill(1000)
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--jars", str(jar_path())]
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        here = ("--master", cluster.master, "--conf", "spark.executor.memory=512m")
        at = ("--servers", topic.servers, "--topic", topic.name)
        out = run("count", *at, "--once", "--mode", "push", launcher=(*submit, *here))
    assert out.count("|  500|") == 2


def test_a_job_runs_with_sparks_own_source(kafka_source: str, new_topic: Callable[..., Topic]) -> None:
    topic = new_topic(2)
    topic.fill(1000)
    out = run("count", *once(topic), "--source", "kafka")
    assert out.count("|  500|") == 2


def test_replay_sums_up_minutes(new_topic: Callable[..., Topic]) -> None:
    topic = new_topic(2)
    topic.fill(120, timestamp=1_900_000_000_000)
    out = run(
        "replay", "--servers", topic.servers, "--topic", topic.name, "--since", "2030-03-17T17:46:40.020"
    )
    assert "|100 " in out


def test_filter_passes_on_what_has_the_word(new_topic: Callable[..., Topic]) -> None:
    topic = new_topic(2)
    topic.fill(50)
    out = run("filter", *once(topic), "--word", "value 42 ")
    assert out.count(f"value 42 of the topic {topic.name}"[:17]) == 1
    assert "value 41" not in out


@pytest.mark.parametrize("name", ["word_count", "windowed_word_count"])
def test_words_are_counted(new_topic: Callable[..., Topic], name: str) -> None:
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": topic.servers})
    for line in ("to be or", "not to be"):  # few words: the console shows 20 rows, windows of 5 times each
        producer.produce(topic.name, line, timestamp=1_900_000_000_000)
    assert producer.flush(30) == 0
    rows = [line.split("|") for line in run(name, *once(topic)).splitlines() if line.count("|") > 2]
    counts = {(cells[-3].strip(), cells[-2].strip()) for cells in rows}
    assert {("to", "2"), ("be", "2"), ("or", "1"), ("not", "1")} <= counts


def test_an_archive_has_every_record_once(
    new_topic: Callable[..., Topic], spark: SparkSession, tmp_path: Path
) -> None:
    topic = new_topic(2)
    folders = ("--output", str(tmp_path / "archive"), "--checkpoint", str(tmp_path / "checkpoint"))
    for first in (0, 100):
        topic.fill(100, first=first)
        run("archive", *once(topic), *folders)
    kept = [(row.partition, row.offset) for row in spark.read.json(str(tmp_path / "archive")).collect()]
    assert sorted(kept) == [(partition, offset) for partition in (0, 1) for offset in range(100)]


def once(topic: Topic) -> tuple[str, ...]:
    return ("--servers", topic.servers, "--topic", topic.name, "--once", "--master", "local[2]")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("route", ("continent", {"eu": "Europe", "ap": "Asia"})), ("stateful", ("records", {"eu": 2, "ap": 1}))],
)
def test_real_time_jobs_write_their_topic(
    spark: SparkSession,
    new_topic: Callable[..., Topic],
    tmp_path: Path,
    name: str,
    expected: tuple[str, dict[str, object]],
) -> None:
    source, target = new_topic(2), new_topic(1)
    producer = Producer({"bootstrap.servers": source.servers})
    for key in ("eu", "ap", "eu"):
        producer.produce(source.name, f"from {key}", key)
    assert producer.flush(30) == 0
    field, values = expected

    def found() -> dict[str, object]:
        """What was written last for each key."""
        rows = spark.read.format("penstock").options(**target.options()).load().orderBy("offset")
        rows = rows.selectExpr("cast(key as string) as key", "cast(value as string) as value")
        return {row.key: json.loads(row.value)[field] for row in rows.collect()}

    arguments = ("--servers", source.servers, "--topic", source.name, "--output", target.name)
    command = [sys.executable, str(JOBS / f"{name}.py"), *arguments, "--master", "local[3]"]
    with (tmp_path / "log").open("wb") as log:
        job = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        eventually(lambda: found() == values, timeout=150, interval=1)
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
