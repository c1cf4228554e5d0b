"""Every job of spark-jobs/ by every launcher, in every place, by every way to read.

All of it takes about twenty minutes: PENSTOCK_JOBS=all. Without that each job goes one way, each another.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from standalone import SPARK_HOME, StandaloneCluster
from topics import Topic

from harness import eventually
from penstock.spark import jar_path
from penstock.spark.kafka_source import kafka_jars

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

JOBS = Path(__file__).parents[2] / "spark-jobs"
ROWS = [(0, "eu", "to be or"), (1, "ap", "not to be"), (0, "eu", "be")]
MOMENT = 1_900_000_000_000
WORDS = {("to", "2"), ("be", "3"), ("or", "1"), ("not", "1")}


class Walk(NamedTuple):
    job: str
    launcher: str
    place: str
    way: str


LAUNCHERS, PLACES, WAYS = ("python", "spark-submit"), ("local", "cluster"), ("push", "pull", "kafka")
WAYS_ROUND = list(itertools.product(LAUNCHERS, PLACES, WAYS))


def cells(out: str) -> set[tuple[str, ...]]:
    """The rows of the tables that a console shows."""
    return {tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in out.splitlines() if "|" in line}


def counts(out: str) -> bool:
    return {row[1:] for row in cells(out)} >= {("0", "2"), ("1", "1")}


def finds(out: str) -> bool:
    return "not to be" in out and "to be or" not in out


def words(out: str) -> bool:
    return {row[-2:] for row in cells(out)} >= WORDS


def minutes(out: str) -> bool:
    return any(row[1:] == ("3", str(sum(len(value) for _, _, value in ROWS))) for row in cells(out))


ENDING: dict[str, tuple[tuple[str, ...], Callable[[str], bool]]] = {
    "count": (("--once",), counts),
    "filter": (("--once", "--word", "not"), finds),
    "word_count": (("--once",), words),
    "windowed_word_count": (("--once",), words),
    "replay": ((), minutes),
    "archive": (("--once",), lambda out: True),
}
"""Jobs that end by themselves: their options, and whether what they show is right."""
REAL_TIME: dict[str, tuple[str, dict[str, object]]] = {
    "route": ("continent", {"eu": "Europe", "ap": "Asia"}),
    "stateful": ("records", {"eu": 2, "ap": 1}),
}
"""Jobs that write a topic until they are stopped: a field of its values, and what it is for each key."""


def walks() -> list[Walk]:
    jobs = [*ENDING, *REAL_TIME]
    if os.environ.get("PENSTOCK_JOBS") == "all":
        return [Walk(job, *way) for job in jobs for way in WAYS_ROUND]
    return [Walk(job, *WAYS_ROUND[5 * number % len(WAYS_ROUND)]) for number, job in enumerate(jobs)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    # Slots, not CPUs: a real-time query with state needs three at once.
    with StandaloneCluster(tmp_path_factory.mktemp("standalone") / "cluster", cores=4) as started:
        yield started


@pytest.mark.parametrize("walk", walks(), ids="-".join)
def test_a_job_goes_every_way(
    walk: Walk, new_topic: Callable[..., Topic], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if walk.way == "kafka":
        request.getfixturevalue("kafka_source")
    master = "local[4]" if walk.place == "local" else request.getfixturevalue("cluster").master
    topic = new_topic(2)
    producer = Producer({"bootstrap.servers": topic.servers})
    for partition, key, value in ROWS:
        producer.produce(topic.name, value, key, partition, timestamp=MOMENT)
    assert producer.flush(30) == 0
    command = [*launched(walk, master), "--servers", topic.servers, "--topic", topic.name]
    command += ["--checkpoint", str(tmp_path / "checkpoint")]
    command += ["--source", "kafka"] if walk.way == "kafka" else ["--mode", walk.way]
    if walk.job in ENDING:
        see_it_end(walk.job, command, tmp_path)
    else:
        see_it_write(walk.job, command, new_topic(1), tmp_path / "log")


def launched(walk: Walk, master: str) -> list[str]:
    job = str(JOBS / f"{walk.job}.py")
    if walk.launcher == "python":
        return [sys.executable, job, "--master", master]
    jars = [jar_path(), *(kafka_jars() if walk.way == "kafka" else ())]
    submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", master]
    return [*submit, "--jars", ",".join(map(str, jars)), job]


def environment() -> dict[str, str]:
    """What spark-submit starts as "python3" is this Python."""
    return {**os.environ, "PYSPARK_PYTHON": sys.executable}


def see_it_end(job: str, command: list[str], folder: Path) -> None:
    options, is_right = ENDING[job]
    output = ["--output", str(folder / "archive")] if job == "archive" else []
    done = subprocess.run(
        [*command, *options, *output], capture_output=True, text=True, timeout=250, env=environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert is_right(done.stdout), done.stdout + done.stderr
    if job == "archive":
        lines = [line for file in (folder / "archive").glob("part-*") for line in file.open()]
        kept = sorted((row["partition"], row["key"], row["value"]) for row in map(json.loads, lines))
        assert kept == sorted(ROWS)


def see_it_write(job: str, command: list[str], target: Topic, log: Path) -> None:
    field, values = REAL_TIME[job]

    def written() -> dict[str, object]:
        """What was written last for each key."""
        return {key: json.loads(value)[field] for key, value in records(target)}

    with log.open("wb") as out:
        running = subprocess.Popen(
            [*command, "--output", target.name],
            stdout=out,
            stderr=out,
            env=environment(),
            start_new_session=True,
        )
    try:
        eventually(lambda: written() == values or running.poll() is not None, timeout=200, interval=0.5)
        assert running.poll() is None, log.read_text()
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def records(topic: Topic) -> list[tuple[str, str]]:
    """Keys and values of a topic's only partition, up to its end as of now."""
    end = topic.ends()[0]
    consumer = Consumer({"bootstrap.servers": topic.servers, "group.id": "matrix"})
    consumer.assign([TopicPartition(topic.name, 0, 0)])
    found: list[tuple[str, str]] = []
    while len(found) < end:
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None, message.error()
        found.append((message.key().decode(), message.value().decode()))
    consumer.close()
    return found
