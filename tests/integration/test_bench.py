"""`penstock bench` as a user runs it, in its smallest form, with real brokers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from harness import PENSTOCK, BrokerProcess
from penstock.bench.puller import Puller


def bench(
    *arguments: str, cwd: Path, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PENSTOCK, "bench", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **environment},
    )


def test_list_names_every_experiment(tmp_path: Path) -> None:
    found = json.loads(bench("list", "--json", cwd=tmp_path).stdout)
    assert {"ingest", "partitions", "fetch", "push", "recovery"} <= {each["name"] for each in found}


def test_ingest_without_kafka_reports_it_missing(tmp_path: Path) -> None:
    # No Java on this path: Kafka can't be had.
    done = bench(
        *(
            "ingest",
            "--chunk",
            "1KiB",
            "--replication",
            "1",
            "-s",
            "0.5",
            "-r",
            "1",
            "--memory",
            "128MiB",
            "--json",
        ),
        cwd=tmp_path,
        PATH="/nonexistent",
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "Java" in document["missing"]["kafka"]
    (sample,) = document["samples"]
    assert sample["contender"] == "penstock"
    assert sample["records_per_second"] > 0
    assert sample["cpu_us_per_request"] > 0
    (written,) = (tmp_path / "artifacts" / "bench").glob("ingest-*.json")
    assert json.loads(written.read_text()) == document


def test_ingest_with_a_backup_tells_leader_and_backup_apart(tmp_path: Path) -> None:
    done = bench(
        *("ingest", "--chunk", "1KiB", "--replication", "2", "--contenders", "penstock"),
        *("-s", "0.5", "-r", "1", "--memory", "128MiB", "--json"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["failures"] == []
    one, two = document["samples"]
    assert (one["variant"]["replication"], two["variant"]["replication"]) == ("1", "2")
    assert "leader_cpu_us_per_request" not in one
    both = two["leader_cpu_us_per_request"] + two["backup_cpu_us_per_request"]
    assert both == pytest.approx(two["cpu_us_per_request"])
    assert two["backup_cpu_us_per_request"] < two["leader_cpu_us_per_request"], "one of them leads it all"
    assert two["leader_cost_at_full_speed"] == pytest.approx(
        two["leader_cpu_us_per_request"] / one["cpu_us_per_request"]
    )
    assert two["leader_cost"] > 0
    assert two["throughput_kept"] == pytest.approx(two["records_per_second"] / one["records_per_second"])


def test_push_costs_the_broker_less_than_pull(tmp_path: Path) -> None:
    done = bench("push", "--size", "16MiB", "-s", "0.5", "-r", "1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["failures"] == []
    samples = {sample["contender"]: sample for sample in document["samples"]}
    assert samples["batches"]["records_per_second"] > 0
    assert samples["records"]["records_per_second"] > 0
    assert samples["batches"]["broker_cpu_share"] < samples["raw"]["broker_cpu_share"]


def test_recovery_answers_after_kill(tmp_path: Path) -> None:
    # Nothing on this path: no Java and no Maven, so that there is no Kafka to be had.
    done = bench("recovery", "--gigabytes", "0.02,0", "-r", "1", "--json", cwd=tmp_path, PATH="/nonexistent")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document["missing"]) == ["kafka"]
    assert document["failures"] == []
    full, empty = document["samples"]
    assert full["recovered_gigabytes"] >= 0.02
    assert empty["recovered_gigabytes"] == 0
    for sample in full, empty:
        assert 0 < sample["first_produce_seconds"] < sample["first_fetch_seconds"]


def test_partitions_are_measured_without_kafka_too(tmp_path: Path) -> None:
    done = bench(
        *("partitions", "--contenders", "1,kafka 1,kafka 100", "-s", "0.5", "-r", "1", "--memory", "64MiB"),
        "--json",
        cwd=tmp_path,
        PATH="/nonexistent",
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert list(document["missing"]) == ["kafka 1", "kafka 100"]
    (sample,) = document["samples"]
    assert sample["cpu_us_per_record"] > 0
    assert sample["own_memory_mb"] > 0


def test_a_figure_of_the_paper_is_measured_and_drawn(tmp_path: Path) -> None:
    # Nothing on this path: no etcd, so that there is no second replica to be had.
    done = bench(
        *("figure", "3", "--chunk", "4KiB", "--clients", "2", "--memory", "128MiB"),
        *("-s", "1", "-r", "1", "-o", "r.json", "--json"),
        cwd=tmp_path,
        PATH="/nonexistent",
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert "etcd" in document["missing"]["replication 2"]
    (sample,) = document["samples"]
    assert sample["producers_records_per_second"] > 0
    assert (tmp_path / "r.png").read_bytes().startswith(b"\x89PNG")
    filled = tmp_path / "doc.md"
    filled.write_text("# Seen\n<!-- bench figure3 -->\n<!-- end -->\n")
    assert bench("report", ".", "--into", "doc.md", cwd=tmp_path).returncode == 0
    assert "![figure3](doc/figure3.png)" in filled.read_text()
    assert (tmp_path / "doc" / "figure3.png").exists()


def test_compare_tells_slower_by_its_exit_code(tmp_path: Path) -> None:
    def write(name: str, cost: float) -> str:
        samples = [
            {"contender": "ours", "variant": {}, "round": number, "cost": cost + number}
            for number in range(3)
        ]
        document = {
            "format": 1,
            "experiment": "x",
            "started": "",
            "complete": True,
            "commit": None,
            "options": {},
            "machine": {},
            "versions": {},
            "baseline": None,
            "metrics": {"cost": {"unit": "us", "better": "less"}},
            "missing": {},
            "samples": samples,
        }
        (tmp_path / name).write_text(json.dumps(document))
        return name

    fast, slow = write("fast.json", 10), write("slow.json", 20)
    assert bench("compare", fast, fast, cwd=tmp_path).returncode == 0
    assert bench("compare", slow, fast, cwd=tmp_path).returncode == 0
    slower = bench("compare", fast, slow, "--json", cwd=tmp_path)
    assert slower.returncode == 1
    assert [each["change"] for each in json.loads(slower.stdout)] == ["slower"]
    assert bench("compare", fast, "none.json", cwd=tmp_path).returncode == 2
    assert bench("compare", ".", ".", cwd=tmp_path).returncode == 2, "no experiment of ours is called x"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_and_keeps_the_result(tmp_path: Path, number: signal.Signals) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    process = subprocess.Popen(
        [*PENSTOCK, "bench", "push", "--size", "4MiB", "-s", "30", "-r", "1", "-o", "r.json"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(shared)},
        # Whoever started us in the background may have us ignore Ctrl-C, and a child inherits that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "push 0/4" in line:
            break
    time.sleep(0.3)  # into the first sample; wherever it is, the outcome must be the same
    process.send_signal(number)
    assert process.wait(90) == 130
    assert json.loads((tmp_path / "r.json").read_text())["complete"] is False
    assert list(shared.iterdir()) == []
    # The children had a directory under TMPDIR in their command lines.
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert str(shared) not in entry.read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue


def test_a_native_reader_that_fell_behind_retention_goes_on_with_what_is_left(broker: BrokerProcess) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([NewTopic("behind", 1, 1)])["behind"].result(10)
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(10):
        producer.produce("behind", str(number), partition=0)
        producer.flush(10)  # a batch each
    place = TopicPartition("behind", 0, 6)
    admin.delete_records([place])[place].result(10)
    puller = Puller(broker.address, "behind", {0: 2}, again=False)
    try:
        pulled = [puller.pull().records for _ in range(2)]
        assert pulled == [0, 4], "it was told where the log begins, and read from there"
    finally:
        puller.close()
