"""kcat, the command line client on librdkafka, uses the broker as it would use Kafka."""

from __future__ import annotations

import json
import subprocess
import uuid

import pytest

from harness import BrokerProcess


def kcat(broker: BrokerProcess, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-q", "-b", broker.address, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def topic() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_in_are_lines_out(shared_broker: BrokerProcess, topic: str, compression: str) -> None:
    lines = "".join(f"line {n} of kcat\n" for n in range(1000))
    kcat(shared_broker, "-P", "-t", topic, "-z", compression, stdin=lines)
    assert kcat(shared_broker, "-C", "-t", topic, "-e") == lines


@pytest.mark.parametrize("acks", ["0", "1", "-1"])
def test_every_kind_of_acknowledgement(shared_broker: BrokerProcess, topic: str, acks: str) -> None:
    kcat(shared_broker, "-P", "-t", topic, "-X", f"acks={acks}", stdin="a\nb\n")
    assert kcat(shared_broker, "-C", "-t", topic, "-c", "2") == "a\nb\n"


def test_keys_headers_and_nulls(shared_broker: BrokerProcess, topic: str) -> None:
    kcat(shared_broker, "-P", "-t", topic, "-K", ":", "-H", "from=kcat", "-Z", stdin="k1:v1\nk2:\n")
    out = kcat(shared_broker, "-C", "-t", topic, "-e", "-J")
    first, second = (json.loads(line) for line in out.splitlines())
    assert (first["key"], first["payload"], first["headers"]) == ("k1", "v1", ["from", "kcat"])
    assert (second["key"], second["payload"], second["offset"]) == ("k2", None, 1)


def test_reading_from_an_offset_from_the_end_and_from_a_time(
    shared_broker: BrokerProcess, topic: str
) -> None:
    kcat(shared_broker, "-P", "-t", topic, stdin="0\n1\n2\n3\n4\n")
    assert kcat(shared_broker, "-C", "-t", topic, "-p", "0", "-o", "3", "-e") == "3\n4\n"
    assert kcat(shared_broker, "-C", "-t", topic, "-p", "0", "-o", "-1", "-e") == "4\n"
    stamp = int(kcat(shared_broker, "-C", "-t", topic, "-p", "0", "-o", "4", "-e", "-f", "%T"))
    found = kcat(shared_broker, "-Q", "-t", f"{topic}:0:{stamp}")
    assert found.startswith(f"{topic} [0] offset ")
    assert kcat(shared_broker, "-C", "-t", topic, "-p", "0", "-o", f"s@{stamp}", "-e").endswith("4\n")


def test_the_cluster_is_listed(shared_broker: BrokerProcess, topic: str) -> None:
    kcat(shared_broker, "-P", "-t", topic, stdin="x\n")
    listing = json.loads(kcat(shared_broker, "-L", "-J"))
    assert listing["brokers"] == [{"id": 1, "name": shared_broker.address}]
    (entry,) = [entry for entry in listing["topics"] if entry["topic"] == topic]
    assert entry["partitions"] == [
        {"partition": 0, "leader": 1, "replicas": [{"id": 1}], "isrs": [{"id": 1}]}
    ]


def test_an_idempotent_producer(shared_broker: BrokerProcess, topic: str) -> None:
    lines = "".join(f"{n}\n" for n in range(5000))
    options = ["-X", "enable.idempotence=true", "-X", "batch.num.messages=50"]
    kcat(shared_broker, "-P", "-t", topic, *options, stdin=lines)
    assert kcat(shared_broker, "-C", "-t", topic, "-e") == lines


def test_a_group_member_reads_everything_and_the_next_goes_on(
    shared_broker: BrokerProcess, topic: str
) -> None:
    group = f"g-{uuid.uuid4().hex[:12]}"
    options = ["-X", "auto.offset.reset=earliest", "-e", "-G", group, topic]
    kcat(shared_broker, "-P", "-t", topic, stdin="a\nb\n")
    assert kcat(shared_broker, *options) == "a\nb\n"
    kcat(shared_broker, "-P", "-t", topic, stdin="c\n")
    assert kcat(shared_broker, *options) == "c\n"
