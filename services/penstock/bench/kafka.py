"""Apache Kafka's jars, fetched once through Maven and kept in ~/.cache/penstock, and its broker's settings.

Used by the bench to start Kafka as a contender. Where the jars come from is Maven's own business.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Final

VERSION: Final = "4.1.1"
CACHE: Final = Path.home() / ".cache" / "penstock" / "kafka-4.1"
_ARTIFACTS: Final = ("kafka_2.13", "kafka-tools")
_FETCH_SECONDS: Final = 600.0

# What Kafka's own start script gives the JVM, with its heap.
JVM: Final = (
    "-Xmx1g",
    "-Xms1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)


class NoKafka(Exception):
    """Kafka can't be had on this machine; the text says what is missing."""


def _pom() -> str:
    dependencies = "".join(
        f"<dependency><groupId>org.apache.kafka</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{VERSION}</version></dependency>"
        for artifact in _ARTIFACTS
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>penstock</groupId>"
        "<artifactId>kafka-jars</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def jars() -> Path:
    """The directory with Kafka's jars; fetched now if they aren't here yet."""
    if any(CACHE.glob(f"kafka_2.13-{VERSION}.jar")) and any(CACHE.glob("kafka-tools-*.jar")):
        return CACHE
    if shutil.which("mvn") is None:
        raise NoKafka("Apache Kafka's jars are not here and there is no Maven (mvn) to fetch them")
    fresh = CACHE.with_name(f"{CACHE.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    try:
        pom = fresh / "pom.xml"
        pom.write_text(_pom())
        goal = ("dependency:copy-dependencies", f"-DoutputDirectory={fresh}")
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", str(pom), *goal],
            capture_output=True,
            text=True,
            timeout=_FETCH_SECONDS,
            check=False,
        )
        if done.returncode:
            raise NoKafka(f"Maven could not fetch Apache Kafka: {(done.stdout + done.stderr)[-500:].strip()}")
        shutil.rmtree(CACHE, ignore_errors=True)
        fresh.rename(CACHE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoKafka(f"Maven could not fetch Apache Kafka: {error}") from None
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return CACHE


def java() -> str:
    found = shutil.which("java")
    if found is None:
        raise NoKafka("there is no Java here (JDK 17 or later)")
    return found


def main(name: str, *arguments: str, options: tuple[str, ...] = ()) -> list[str]:
    """The command that runs one of Kafka's main classes."""
    return [java(), *options, "-cp", f"{jars()}/*", name, *arguments]


def new_cluster_id() -> str:
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):  # the storage tool would take it for an option
            return text


def settings(
    port: int, controller_port: int, logs: Path, *, node: int = 1, controller: int = 1, serves: bool = True
) -> str:
    """The controller is one of the brokers, or a node that serves no client. Threads, buffers and timeouts
    are Kafka's defaults; retention is looked at every second, so that the log stays as small as the topic
    says."""
    clients, control = f"PLAINTEXT://127.0.0.1:{port}", f"CONTROLLER://127.0.0.1:{controller_port}"
    roles = {"broker": (serves, clients), "controller": (node == controller, control)}
    own = {role: listener for role, (has, listener) in roles.items() if has}
    return "\n".join(
        (
            f"process.roles={','.join(own)}",
            f"node.id={node}",
            f"controller.quorum.voters={controller}@127.0.0.1:{controller_port}",
            f"listeners={','.join(own.values())}",
            *([f"advertised.listeners={clients}"] if serves else []),
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names=CONTROLLER",
            f"log.dirs={logs}",
            "offsets.topic.replication.factor=1",
            "transaction.state.log.replication.factor=1",
            "transaction.state.log.min.isr=1",
            "group.initial.rebalance.delay.ms=0",
            "log.retention.check.interval.ms=1000",
            "log.segment.delete.delay.ms=1000",
            "",
        )
    )
