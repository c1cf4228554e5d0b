"""The command line as a user meets it: real commands, as processes, against a real broker."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import typer.main
from aiokafka import AIOKafkaConsumer

from harness import PENSTOCK, BrokerProcess, eventually, free_port
from penstock.cli.kafka import LATEST, Cluster
from penstock.cli.main import app
from penstock.cli.topic import create_topic
from scraping import Page, scrape


class Ended(NamedTuple):
    code: int
    out: bytes
    error: str


class Shell:
    """Runs `penstock` with the addresses of one broker in its environment.

    In this process, on a thread with streams of its own: a new interpreter for each of a hundred commands
    would be most of the time these tests take. `start` gives a process where it matters.
    """

    def __init__(self, broker: BrokerProcess) -> None:
        self.addresses = {
            "PENSTOCK_BROKER": broker.address,
            "PENSTOCK_HTTP": f"127.0.0.1:{broker.http_port}",
        }

    def run(self, *arguments: str, stdin: bytes = b"") -> Ended:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._run, arguments, stdin).result(60)

    def _run(self, arguments: tuple[str, ...], stdin: bytes) -> Ended:
        out, error = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
        with tempfile.TemporaryFile() as file, pytest.MonkeyPatch.context() as patch:
            file.write(stdin)
            file.seek(0)
            patch.setattr(sys, "stdin", io.TextIOWrapper(file))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", error)
            for name, address in self.addresses.items():
                patch.setenv(name, address)
            try:
                app(arguments)
                code: Any = 0
            except SystemExit as end:
                code = end.code or 0
        written = [stream.buffer.getvalue() for stream in (out, error)]  # type: ignore[attr-defined]
        return Ended(code, written[0], written[1].decode())

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*PENSTOCK, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.addresses},
        )

    def ok(self, *arguments: str, stdin: bytes = b"") -> bytes:
        ended = self.run(*arguments, stdin=stdin)
        assert ended.code == 0, ended.error
        return ended.out

    def json(self, *arguments: str, stdin: bytes = b"") -> Any:
        return json.loads(self.ok(*arguments, "--json", stdin=stdin))

    def refused(self, *arguments: str, stdin: bytes = b"", code: int = 1) -> str:
        """The one line that it says when it can't."""
        ended = self.run(*arguments, stdin=stdin)
        assert ended.code == code, ended
        lines = ended.error.splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith(f"penstock {arguments[0]}: ")
        return lines[0]

    def topic(self, partitions: int = 1, *options: str) -> str:
        name = f"topic-{uuid4().hex[:8]}"
        self.ok("topic", "create", name, "-p", str(partitions), *options)
        return name


@pytest.fixture(scope="module")
def shell(shared_broker: BrokerProcess) -> Shell:
    return Shell(shared_broker)


def commands(group: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


# Help


@pytest.mark.parametrize(("name", "command"), list(commands()))
def test_every_command_explains_itself_with_an_example(name: str, command: Any) -> None:
    text = command.callback.__doc__ or ""
    assert "Example" in text
    assert f"penstock {name}" in text
    assert all(parameter.help for parameter in command.params)


def test_help_loads_none_of_the_heavy_libraries() -> None:
    heavy = (
        "kio",
        "aiokafka",
        "fastapi",
        "uvicorn",
        "pydantic",
        "prometheus_client",
        "penstock.broker.server",
    )
    script = f"import sys, penstock.cli.main; print([name for name in {heavy!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


# Topics


def test_a_topic_can_be_made_looked_at_changed_and_deleted(shell: Shell) -> None:
    name = shell.topic(2, "-c", "retention.ms=60000")
    listed = next(row for row in shell.json("topic", "list") if row["topic"] == name)
    assert (listed["partitions"], listed["records"]) == (2, 0)
    shell.ok("topic", "alter", name, "-c", "durability=disk", "--unset", "retention.ms", "--partitions", "3")
    described = shell.json("topic", "describe", name)
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2]
    assert [(config["name"], config["value"]) for config in described["configs"]] == [("durability", "disk")]
    everything = {
        config["name"]: config for config in shell.json("topic", "describe", name, "--all")["configs"]
    }
    assert everything["retention.ms"]["from"] == "default"
    shell.ok("topic", "delete", name)
    assert name not in [row["topic"] for row in shell.json("topic", "list")]


def test_tables_are_not_cut_when_they_go_to_a_pipe(shell: Shell) -> None:
    name = f"{'long-name-' * 12}{uuid4().hex[:8]}"
    shell.ok("topic", "create", name)
    assert name in shell.ok("topic", "list").decode()
    assert name in shell.ok("topic", "describe", name).decode()


async def test_topics_can_be_listed_while_others_are_made(shell: Shell) -> None:
    async def make(count: int) -> None:
        async with Cluster(shell.addresses["PENSTOCK_BROKER"]) as cluster:
            for _ in range(count):
                await create_topic(cluster, f"topic-{uuid4().hex[:8]}", 4, -1, {})

    making = asyncio.create_task(make(20))
    async with Cluster(shell.addresses["PENSTOCK_BROKER"]) as cluster:
        while not making.done():
            await cluster.offsets(await cluster.topics(), LATEST)
    await making


def test_internal_topics_are_listed_only_when_asked_for(shell: Shell) -> None:
    assert "__consumer_offsets" not in shell.ok("topic", "list").decode()
    assert "__consumer_offsets" in shell.ok("topic", "list", "--internal").decode()


def test_what_a_broker_refuses_is_one_line_in_its_own_words(shell: Shell) -> None:
    name = shell.topic(2)
    assert f"topic {name} already exists" in shell.refused("topic", "create", name)
    assert "unknown topic config no.such" in shell.refused("topic", "alter", name, "-c", "no.such=1")
    assert "it can only get more" in shell.refused("topic", "alter", name, "-p", "1")
    assert "'durability' is not NAME=VALUE" in shell.refused("topic", "alter", name, "-c", "durability")
    assert "nothing to change" in shell.refused("topic", "alter", name)
    assert "the only broker here is" in shell.refused("topic", "create", "placed", "-p", "1", "--on", "77")
    assert "not broker ids" in shell.refused("topic", "create", "placed", "-p", "1", "--on", "a")
    assert "--on takes --partitions" in shell.refused("topic", "create", "placed", "--on", "1")
    contrary = ("-p", "1", "--on", "1,2", "--replication", "3")
    assert "names 2 brokers" in shell.refused("topic", "create", "placed", *contrary)
    for command in ("describe", "delete"):
        assert "there is no topic 'nowhere'" in shell.refused("topic", command, "nowhere")


# Producing and consuming


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_produced_is_consumed_by_pull_and_by_push(shell: Shell, compression: str) -> None:
    topic = shell.topic()
    lines = b"".join(b"key-%d:value %d\n" % (at, at) for at in range(500))
    report = shell.json("produce", topic, "-k", ":", "--compression", compression, stdin=lines)
    assert report == {"topic": topic, "acknowledged": 500, "failed": 0}
    values = b"".join(b"value %d\n" % at for at in range(500))
    assert shell.ok("consume", topic) == values
    assert shell.ok("consume", topic, "--push") == values
    assert shell.ok("consume", topic, "--keys", "--max", "1") == b"key-0\tvalue 0\n"
    pulled = shell.ok("consume", topic, "--json", "--from", "498").splitlines()
    pushed = shell.ok("consume", topic, "--json", "--from", "498", "--push").splitlines()
    assert pulled == pushed
    assert [json.loads(line)["offset"] for line in pulled] == [498, 499]


def test_every_line_is_a_record_with_or_without_a_last_newline(shell: Shell) -> None:
    topic = shell.topic()
    ended = shell.run("produce", topic, "--acks", "1", stdin=b"one\n\nthree\r\nfour")
    assert ended.error == f"4 records to {topic}\n"
    assert shell.ok("consume", topic) == b"one\n\nthree\nfour\n"


def test_producing_says_what_is_wrong_with_the_input(shell: Shell) -> None:
    topic = shell.topic()
    assert "a line has no ':'" in shell.refused("produce", topic, "-k", ":", stdin=b"no key\n")
    assert f"{topic} has no partition 7" in shell.refused("produce", topic, "-p", "7", stdin=b"x\n")


@pytest.mark.parametrize("options", [(), ("--push",)])
def test_follow_prints_records_as_they_come(shell: Shell, options: tuple[str, ...]) -> None:
    topic = shell.topic()
    shell.ok("produce", topic, stdin=b"first\n")
    with shell.start("consume", topic, "--follow", "--max", "2", *options) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"first\n"
        shell.ok("produce", topic, stdin=b"second\n")
        assert follower.stdout.readline() == b"second\n"
        assert follower.wait(30) == 0


def test_a_group_goes_on_where_it_was(shell: Shell) -> None:
    topic, group = shell.topic(), f"group-{uuid4().hex[:8]}"
    shell.ok("produce", topic, stdin=b"a\nb\nc\n")
    assert shell.ok("consume", topic, "--group", group, "--max", "2") == b"a\nb\n"
    assert shell.ok("consume", topic, "--group", group) == b"c\n"


def test_output_that_nobody_reads_is_no_error(shell: Shell) -> None:
    topic = shell.topic()
    shell.ok("produce", topic, stdin=b"x\n" * 100_000)
    with shell.start("consume", topic) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == b"x\n"
        consumer.stdout.close()
        assert consumer.stderr.read() == b""
        assert consumer.wait(30) == 0


def test_consuming_what_is_not_there_is_one_line(shell: Shell) -> None:
    topic = shell.topic(2)
    assert "there is no topic 'nowhere'" in shell.refused("consume", "nowhere")
    assert "has no nowhere-0" in shell.refused("consume", "nowhere", "--push")
    assert "has partitions 0 to 1, not 5" in shell.refused("consume", topic, "-p", "5")
    assert "--from soon" in shell.refused("consume", topic, "--from", "soon")
    assert "leave out --group" in shell.refused("consume", topic, "--push", "--group", "g")


# Groups


def offsets(shell: Shell, group: str) -> dict[int, int]:
    return {row["partition"]: row["committed"] for row in shell.json("group", "describe", group)["offsets"]}


def test_a_group_can_be_reset_to_either_end_an_offset_or_a_time(shell: Shell) -> None:
    topic, group = shell.topic(2), f"group-{uuid4().hex[:8]}"
    shell.ok("produce", topic, "-p", "0", stdin=b"x\n" * 10)
    shell.ok("produce", topic, "-p", "1", stdin=b"x\n" * 4)
    shell.ok("consume", topic, "--group", group)
    assert group in [row["group"] for row in shell.json("group", "list")]
    assert offsets(shell, group) == {0: 10, 1: 4}
    shell.ok("group", "reset", group, "--to", "earliest")
    assert offsets(shell, group) == {0: 0, 1: 0}
    assert shell.json("group", "describe", group)["lag"] == 14
    shell.ok("group", "reset", group, "--to", "6")
    assert offsets(shell, group) == {0: 6, 1: 4}, "past the end means the end"
    rows = shell.json("group", "reset", group, "--to", "2001-01-01T00:00")
    assert [(row["was"], row["is"]) for row in rows] == [(6, 0), (4, 0)]
    shell.ok("group", "reset", group, "--to", "2101-01-01")
    assert offsets(shell, group) == {0: 10, 1: 4}
    shell.ok("group", "reset", group, "--to", "earliest", "--dry-run")
    assert offsets(shell, group) == {0: 10, 1: 4}


async def test_a_group_with_active_members_is_not_reset(shell: Shell) -> None:
    topic, group = shell.topic(), f"group-{uuid4().hex[:8]}"
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=shell.addresses["PENSTOCK_BROKER"], group_id=group)
    await consumer.start()
    try:
        while not consumer.assignment():
            await consumer.getmany(timeout_ms=50)
        line = shell.refused("group", "reset", group, "--to", "earliest", "--topic", topic)
        assert f"group {group} has 1 active members (Stable): stop them" in line
    finally:
        await consumer.stop()
    shell.ok("group", "reset", group, "--to", "latest", "--topic", topic)


def test_a_group_can_get_offsets_before_it_has_members(shell: Shell) -> None:
    topic, group = shell.topic(), f"group-{uuid4().hex[:8]}"
    shell.ok("produce", topic, stdin=b"skipped\nread\n")
    shell.ok("group", "reset", group, "--to", "1", "--topic", topic)
    assert shell.ok("consume", topic, "--group", group) == b"read\n"


def test_unknown_groups_and_places_are_one_line(shell: Shell) -> None:
    assert "there is no group 'nobody'" in shell.refused("group", "describe", "nobody")
    assert "there is no group 'nobody'" in shell.refused("group", "reset", "nobody", "--to", "latest")
    topic, group = shell.topic(), f"group-{uuid4().hex[:8]}"
    line = shell.refused("group", "reset", group, "--to", "someday", "--topic", topic)
    assert "'someday' is not earliest, latest, an offset, or a time" in line


# Load


@pytest.mark.parametrize("options", [("--acks", "all"), ("--pipeline", "4", "--producers", "2")])
def test_every_record_that_load_counts_is_in_the_log(shell: Shell, options: tuple[str, ...]) -> None:
    topic = f"load-{uuid4().hex[:8]}"
    report = shell.json("load", "-t", topic, "-p", "4", "--chunk", "4KiB", "--seconds", "0.5", *options)
    assert report["records"] > 0
    assert report["refused"] == 0
    assert report["failure"] is None
    assert report["latency_ms_p50"] <= report["latency_ms_p99"] <= report["latency_ms_max"]
    described = shell.json("topic", "describe", topic)
    ends = [part["end"] for part in described["partitions"]]
    assert sum(ends) == report["records"]
    assert len(set(ends)) == 1, "one chunk per partition in every request"


def test_load_ends_when_it_has_written_what_it_was_asked_for(shell: Shell) -> None:
    topic = f"load-{uuid4().hex[:8]}"
    options = ("-p", "4", "--chunk", "4KiB", "-n", "2", "--pipeline", "3", "--size", "1MiB")
    report = shell.json("load", "-t", topic, *options, "--seconds", "60")
    request = report["bytes"] // report["requests"]
    assert 1 << 20 <= report["bytes"] < (1 << 20) + 2 * request, "a request too much of each producer at most"
    assert report["seconds"] < 30
    assert "--size" in shell.refused("load", "-t", topic, "--size", "much")
    assert "--seconds 0" in shell.refused("load", "-t", topic, "--size", "1MiB", "--seconds", "0")


def test_load_says_nothing_of_refusals_where_there_were_none(shell: Shell) -> None:
    said = shell.ok("load", "-t", f"load-{uuid4().hex[:8]}", "--seconds", "0.3")
    assert b"records/s" in said
    assert b"no room" not in said


def test_load_tells_prometheus_what_it_does(shell: Shell) -> None:
    topic, address = f"load-{uuid4().hex[:8]}", f"127.0.0.1:{free_port()}"

    def figures() -> Page:
        try:
            return scrape(f"http://{address}/metrics")
        except OSError:
            return Page()  # not there yet

    with shell.start("load", "-t", topic, "-p", "2", "--seconds", "60", "--metrics", address) as load:
        eventually(lambda: figures().sum("penstock_producer_records_total", topic=topic) > 1000, timeout=30)
        found = figures()
        taken = shell.refused("load", "-t", topic, "--metrics", address)
        load.send_signal(signal.SIGINT)
        load.communicate(timeout=20)
    assert taken.startswith(f"penstock load: --metrics {address}: ")
    assert found.of("penstock_producer_requests_total", topic=topic, outcome="refused") == 0
    acknowledged = found.of("penstock_producer_requests_total", topic=topic, outcome="acknowledged")
    assert 0 < acknowledged <= found.of("penstock_producer_request_seconds_count", topic=topic)
    assert found.of("penstock_producer_bytes_total", topic=topic) > 100 * 1000
    assert found.of("process_cpu_seconds_total") > 0


def test_load_keeps_to_the_rate_it_was_given(shell: Shell) -> None:
    report = shell.json(
        "load", "-t", "rated", "-p", "2", "--chunk", "1KiB", "--rate", "2000", "--seconds", "2"
    )
    assert 1000 < report["records_per_second"] < 2200


def test_loads_chunks_are_what_other_readers_take_for_records(shell: Shell) -> None:
    topic = f"load-{uuid4().hex[:8]}"
    shell.ok("load", "-t", topic, "-p", "1", "--record", "64", "--compression", "lz4", "--seconds", "0.2")
    first = json.loads(shell.ok("consume", topic, "--max", "1", "--json"))
    assert len(first["value"]) == 64
    assert first["offset"] == 0


def test_load_says_why_chunks_are_refused(shell: Shell) -> None:
    line = shell.refused("load", "-t", "too-large", "-p", "1", "--chunk", "2MiB", "--seconds", "0.2")
    assert "partition 0 refused its chunk: message_too_large" in line
    assert "is not a size" in shell.refused("load", "--chunk", "big")
    topic = shell.topic(2)
    assert f"penstock topic alter {topic} --partitions 4" in shell.refused("load", "-t", topic, "-p", "4")


def test_load_says_when_the_broker_goes_away(broker: BrokerProcess) -> None:
    shell = Shell(broker)
    with shell.start("load", "-t", "cut-short", "--seconds", "60") as load:
        eventually(lambda: any(row["records"] for row in shell.json("topic", "list")))
        broker.kill()
        _, error = load.communicate(timeout=30)
    assert load.returncode == 1
    assert error.decode().startswith("penstock load: cut-short: the broker closed the connection")
    assert error.count(b"\n") == 1


# Status


def test_status_shows_broker_topics_and_groups_in_one_screen(shell: Shell) -> None:
    topic, group = shell.topic(), f"group-{uuid4().hex[:8]}"
    shell.ok("produce", topic, stdin=b"x\n" * 50)
    shell.ok("consume", topic, "--group", group)
    out = shell.ok("status").decode()
    assert out.startswith("broker 1  ready")
    assert group in out
    views = shell.json("status")
    assert views["broker"]["ready"] is True
    assert topic in [row["topic"] for row in views["topics"]]
    assert views["readers"] == []


# Inspect


def segments(broker: BrokerProcess, shell: Shell, topic: str) -> tuple[Path, Path]:
    """A topic's first segment, in memory and on disk."""
    topic_id = shell.json("topic", "describe", topic)["topic_id"].replace("-", "")
    (memory,) = (broker.memory_dir / topic_id / "0").glob("*.seg")
    disk = broker.data_dir / "topics" / f"{topic}.{topic_id}" / "0" / "00000000000000000000.log"
    eventually(lambda: disk.exists() and disk.stat().st_size > 0)
    return memory, disk


def test_inspect_shows_the_same_batches_in_memory_and_on_disk(
    shared_broker: BrokerProcess, shell: Shell
) -> None:
    topic = shell.topic()
    shell.ok("produce", topic, "-k", ":", "--compression", "gzip", stdin=b"a:1\nb:2\n")
    memory, disk = segments(shared_broker, shell, topic)
    in_memory, on_disk = shell.json("inspect", str(memory), "-r"), shell.json("inspect", str(disk), "-r")
    assert in_memory["batches"] == on_disk["batches"]
    assert in_memory["segment"]["base_offset"] == 0
    assert on_disk["segment"] is None
    (batch,) = on_disk["batches"]
    assert (batch["base_offset"], batch["last_offset"], batch["compression"]) == (0, 1, "gzip")
    assert batch["crc_ok"] is True
    assert [(record["key"], record["value"]) for record in batch["records"]] == [("a", "1"), ("b", "2")]
    assert "gzip" in shell.ok("inspect", str(memory)).decode()
    assert "value='2'" in shell.ok("inspect", str(memory), "--records").decode()


def test_inspect_finds_damage_and_torn_tails(
    shared_broker: BrokerProcess, shell: Shell, tmp_path: Path
) -> None:
    topic = shell.topic()
    shell.ok("produce", topic, stdin=b"x\n")
    _, disk = segments(shared_broker, shell, topic)
    whole = disk.read_bytes()
    damaged = tmp_path / "damaged.log"
    damaged.write_bytes(whole[:-1] + b"?" + whole)
    ended = shell.run("inspect", str(damaged))
    assert ended.code == 1
    assert "1 batches fail their CRC, the first at position 0" in ended.error
    torn = tmp_path / "torn.log"
    torn.write_bytes(whole + whole[:-3])
    ended = shell.run("inspect", str(torn))
    assert ended.code == 1
    assert f"{len(whole) - 3} bytes after position {len(whole)} are no whole" in ended.error
    assert "No such file" in shell.refused("inspect", str(tmp_path / "nothing.log"))
    fake = tmp_path / "fake.seg"
    fake.write_bytes(b"not a segment")
    assert "is not a Penstock segment" in shell.refused("inspect", str(fake))


# Settings


def test_config_shows_every_value_and_where_it_comes_from(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text('memory = "64MiB"\n')
    shown = shell.json("config", "--config", str(file))
    assert shown["memory"] == {"value": 64 << 20, "source": str(file)}
    assert shown["http"]["source"] == "PENSTOCK_HTTP"
    assert shown["broker_id"] == {"value": 1, "source": "default"}
    table = shell.ok("config", "--config", str(file)).decode()
    assert "64.0 MiB" in table


@pytest.mark.parametrize("command", ["config", "broker"])
def test_a_bad_setting_is_one_line_and_exit_code_2(shell: Shell, tmp_path: Path, command: str) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("lisen = 1\n")
    line = shell.refused(command, "--config", str(file), code=2)
    assert "lisen: there is no such setting" in line


# Nobody there


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "list"),
        ("group", "list"),
        ("produce", "t"),
        ("consume", "t"),
        ("consume", "t", "--push"),
        ("load",),
    ],
)
def test_without_a_broker_every_command_says_what_to_do(shell: Shell, arguments: tuple[str, ...]) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    line = shell.refused(*arguments, "--broker", nobody)
    assert f"no broker answers at {nobody}; start one with `penstock broker`" in line


def test_status_without_a_broker_says_what_to_do(shell: Shell) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    assert f"nothing answers at http://{nobody}" in shell.refused("status", "--http", nobody)


def test_a_port_that_is_not_kafka_is_one_line(shared_broker: BrokerProcess, shell: Shell) -> None:
    line = shell.refused("topic", "list", "--broker", f"127.0.0.1:{shared_broker.http_port}")
    assert "it is no Kafka broker" in line
