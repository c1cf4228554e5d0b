"""Apache Kafka 4.1's own tools, unchanged, against this broker.

The jars come through Maven once and stay in ~/.cache/penstock.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import BrokerProcess, eventually

pytestmark = pytest.mark.java

POM = Path(__file__).parent.parent / "java" / "pom.xml"
JARS = Path.home() / ".cache" / "penstock" / "kafka-4.1"
JVM = ["java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
TOOLS = "org.apache.kafka.tools"

Run = Callable[..., str]


@pytest.fixture(scope="module")
def jars() -> Path:
    if not list(JARS.glob("kafka-tools-*.jar")):
        fresh = JARS.with_name(f"{JARS.name}.{os.getpid()}")
        done = subprocess.run(
            ["mvn", "-q", "-B", "-f", POM, "dependency:copy-dependencies", f"-DoutputDirectory={fresh}"],
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, f"Maven could not fetch Kafka's tools:\n{done.stdout}{done.stderr}"
        shutil.rmtree(JARS, ignore_errors=True)
        fresh.rename(JARS)
    return JARS


@pytest.fixture(scope="module")
def tool(jars: Path, shared_broker: BrokerProcess) -> Run:
    """Run a tool's main class; what it prints, or a failed test with what it complained about."""

    def run(
        main: str,
        *arguments: str,
        stdin: str = "",
        server: bool = True,
        fails: bool = False,
        timeout: int = 60,
    ) -> str:
        where = ["--bootstrap-server", shared_broker.address] if server else []
        done = subprocess.run(
            [*JVM, "-cp", f"{jars}/*", main, *where, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        output = done.stdout + ("" if done.returncode == 0 and not fails else done.stderr)
        assert (done.returncode != 0) == fails, output
        return output

    return run


@pytest.fixture
def topic() -> str:
    return f"j-{uuid.uuid4().hex[:10]}"


def test_kafka_topics_creates_lists_describes_grows_and_deletes(tool: Run, topic: str) -> None:
    command = f"{TOOLS}.TopicCommand"
    name = ["--topic", topic]
    tool(command, "--create", *name, "--partitions", "2", "--config", "retention.ms=5000000")
    assert topic in tool(command, "--list").split()
    tool(command, "--alter", *name, "--partitions", "4")
    described = tool(command, "--describe", *name)
    assert "PartitionCount: 4\tReplicationFactor: 1\tConfigs: retention.ms=5000000" in described
    assert described.count("Leader: 1\tReplicas: 1\tIsr: 1") == 4
    again = tool(command, "--create", *name, fails=True)
    assert f"topic {topic} already exists" in again
    tool(command, "--delete", *name)
    assert topic not in tool(command, "--list").split()


def test_kafka_configs_describes_and_alters(tool: Run, topic: str) -> None:
    command = "kafka.admin.ConfigCommand"
    tool(f"{TOOLS}.TopicCommand", "--create", "--topic", topic)
    entity = ["--entity-type", "topics", "--entity-name", topic]
    tool(command, *entity, "--alter", "--add-config", "retention.ms=1234567,cleanup.policy=[compact,delete]")
    described = tool(command, *entity, "--describe")
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=1234567" in described
    assert "cleanup.policy=compact,delete" in described
    tool(command, *entity, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms" not in tool(command, *entity, "--describe")
    refused = tool(command, *entity, "--alter", "--add-config", "retention.ms=soon", fails=True)
    assert "InvalidConfigurationException" in refused
    broker = tool(command, "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
    assert "broker.id=1" in broker


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_producer_to_console_consumer(tool: Run, topic: str, compression: str) -> None:
    lines = "".join(f"k{n}:line {n}\n" for n in range(100))
    keyed = ["--property", "parse.key=true", "--property", "key.separator=:"]
    tool(
        f"{TOOLS}.ConsoleProducer",
        *("--topic", topic, *keyed, "--compression-codec", compression),
        stdin=lines,
    )
    shown = ["--property", "print.key=true", "--property", "key.separator=:"]
    out = tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--topic", topic, "--from-beginning", "--max-messages", "100", "--timeout-ms", "20000", *shown),
    )
    assert out == lines


def test_producer_perf_and_consumer_perf(tool: Run, topic: str, shared_broker: BrokerProcess) -> None:
    wanted = ["--num-records", "50000", "--record-size", "100", "--throughput", "-1"]
    settings = [f"bootstrap.servers={shared_broker.address}", "acks=all", "compression.type=lz4"]
    sent = tool(
        f"{TOOLS}.ProducerPerformance",
        *("--topic", topic, *wanted, "--producer-props", *settings),
        server=False,
    )
    assert "50000 records sent" in sent
    read = tool(f"{TOOLS}.ConsumerPerformance", "--topic", topic, "--messages", "50000", "--timeout", "20000")
    assert int(read.splitlines()[1].split(",")[4]) == 50000


def test_kafka_consumer_groups_lists_describes_resets_and_deletes(tool: Run, topic: str) -> None:
    command = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    group = f"g-{topic}"
    tool(f"{TOOLS}.ConsoleProducer", "--topic", topic, stdin="a\nb\nc\n")
    tool(
        f"{TOOLS}.consumer.ConsoleConsumer",
        *("--topic", topic, "--group", group, "--from-beginning", "--max-messages", "3"),
    )
    assert group in tool(command, "--list").split()

    def row() -> list[str]:
        lines = tool(command, "--describe", "--group", group).splitlines()
        return next(line for line in lines if topic in line).split()[:6]

    assert row() == [group, topic, "0", "3", "3", "0"]
    assert "Empty" in tool(command, "--describe", "--group", group, "--state")
    tool(command, "--reset-offsets", "--group", group, "--topic", topic, "--shift-by", "-2", "--execute")
    assert row() == [group, topic, "0", "1", "3", "2"]
    tool(command, "--delete-offsets", "--group", group, "--topic", topic)
    tool(command, "--delete", "--group", group)
    assert group not in tool(command, "--list").split()


def test_get_offsets_and_delete_records(tool: Run, topic: str, tmp_path: Path) -> None:
    tool(f"{TOOLS}.ConsoleProducer", "--topic", topic, stdin="".join(f"{n}\n" for n in range(10)))

    def offset(time: str) -> str:
        return tool(f"{TOOLS}.GetOffsetShell", "--topic", topic, "--time", time).strip()

    assert offset("latest") == f"{topic}:0:10"
    assert offset("max-timestamp").startswith(f"{topic}:0:")
    wanted = tmp_path / "delete.json"
    wanted.write_text(
        json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 4}], "version": 1})
    )
    deleted = tool(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(wanted))
    assert f"partition: {topic}-0\tlow_watermark: 4" in deleted
    assert offset("earliest") == f"{topic}:0:4"


def test_verifiable_producer_and_consumer(tool: Run, topic: str) -> None:
    produced = tool(f"{TOOLS}.VerifiableProducer", "--topic", topic, "--max-messages", "500", "--acks", "-1")
    summary = [json.loads(line) for line in produced.splitlines() if '"tool_data"' in line]
    assert (summary[0]["sent"], summary[0]["acked"]) == (500, 500)
    consumed = tool(
        f"{TOOLS}.VerifiableConsumer",
        *("--topic", topic, "--group-id", f"g-{topic}", "--max-messages", "500"),
        *("--reset-policy", "earliest"),
    )
    events = [json.loads(line) for line in consumed.splitlines() if line.startswith("{")]
    assert sum(event["count"] for event in events if event["name"] == "records_consumed") == 500
    assert all(event["success"] for event in events if event["name"] == "offsets_committed")


def test_log_dirs_cluster_id_and_api_versions(tool: Run, topic: str, shared_broker: BrokerProcess) -> None:
    tool(f"{TOOLS}.ConsoleProducer", "--topic", topic, stdin="x\n")
    directories = tool(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic)
    found = json.loads(directories.splitlines()[-1])["brokers"][0]["logDirs"][0]
    assert found["logDir"] == str(shared_broker.data_dir)
    assert found["partitions"][0]["partition"] == f"{topic}-0"
    assert found["partitions"][0]["size"] > 0
    cluster = tool(
        f"{TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", shared_broker.address, server=False
    )
    assert cluster.startswith("Cluster ID: ")
    versions = tool(f"{TOOLS}.BrokerApiVersionsCommand")
    assert "Produce(0): 3 to 13 [usable: 13]" in versions
    assert "Fetch(1): 4 to 17 [usable: 17]" in versions


def test_dump_log_reads_our_segment_files(tool: Run, topic: str, shared_broker: BrokerProcess) -> None:
    tool(f"{TOOLS}.ConsoleProducer", "--topic", topic, "--compression-codec", "gzip", stdin="one\ntwo\n")

    def written() -> list[Path]:
        return [
            path for path in shared_broker.data_dir.glob(f"topics/{topic}.*/0/*.log") if path.stat().st_size
        ]

    eventually(written)
    dump = tool(
        "kafka.tools.DumpLogSegments",
        *("--files", str(written()[0]), "--print-data-log", "--deep-iteration"),
        server=False,
    )
    assert "payload: one" in dump
    assert "payload: two" in dump
    assert "compresscodec: gzip" in dump
    assert "isvalid: true" in dump
