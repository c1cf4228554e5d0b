"""Spark's own Kafka source, to compare with: its jars, fetched once by Maven into the user's cache.

Used by `--source kafka` of the jobs, by the drop-in tests and by the benchmarks; never by Penstock itself.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

# The newest that exists for each; together they run in Spark 4.3.
ARTIFACTS: Final = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)


class KafkaJarsMissing(Exception):
    """The jars are not in the cache and can't be fetched."""


def cache_dir() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "penstock" / "spark-kafka"


def jar_of(artifact: str) -> Path:
    _group, name, version = artifact.split(":")
    return cache_dir() / f"{name}-{version}.jar"


def kafka_jars() -> list[Path]:
    """The jars for `spark.jars`, fetched if they aren't there yet."""
    for artifact in ARTIFACTS:
        if not jar_of(artifact).is_file():
            _fetch(artifact)
    return [jar_of(artifact) for artifact in ARTIFACTS]


def _fetch(artifact: str) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaJarsMissing(
            f"{jar_of(artifact)} is missing, and there is no mvn on the PATH to fetch it with"
        )
    cache_dir().mkdir(parents=True, exist_ok=True)
    quiet = [maven, "-q", "-B"]
    for goal in (
        [*quiet, "dependency:get", f"-Dartifact={artifact}", "-Dtransitive=false"],
        [*quiet, "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={cache_dir()}"],
    ):
        done = subprocess.run(goal, capture_output=True, text=True, cwd=cache_dir())
        if done.returncode != 0:
            raise KafkaJarsMissing(f"{' '.join(goal[1:])} failed:\n{done.stdout[-2000:]}")
