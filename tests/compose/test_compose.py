"""`docker compose up`, and what becomes of it: one cluster, under load from the first test nearly to the end.

The tests go on from one another, in this order. Two streams flow: the compose file's own producer into
`events`, and numbers from here into `numbers`, which the job archives; every number that was acknowledged is
compared with the archive at the end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import ROOT, Deployment, run
from numbers_in import Numbers
from topics import Topic

import archive
from harness import eventually

pytestmark = [pytest.mark.compose, pytest.mark.timeout(1800)]

SERVICES = (
    "etcd",
    "broker-a",
    "broker-b",
    "spark-master",
    "spark-worker-a",
    "spark-worker-b",
    "job",
    "producer",
)
# What a test allows on a machine that does other things too; docs/deployment.md has what was measured.
LONGEST_START = 60.0
PATIENCE = 240.0
PANELS = ROOT / "grafana" / "check_panels.py"


@pytest.fixture(scope="module")
def numbers(deployment: Deployment) -> Iterator[Numbers]:
    deployment.environment |= {
        "JOB": "archive",
        "JOB_TOPIC": "numbers",
        "JOB_OPTIONS": "--output /jobs/archive",
    }
    started = time.monotonic()
    deployment.up("etcd", "broker-a", "broker-b", "keeper-a", "keeper-b")
    topic = Topic(deployment.servers, "numbers", 4, replication=2)
    deployment.up()
    print(f"\nall healthy in {time.monotonic() - started:.1f} s")
    with Numbers(topic) as numbers:
        yield numbers


def acknowledges_more(numbers: Numbers, count: int = 500) -> None:
    goal = len(numbers.acknowledged) + count
    eventually(lambda: len(numbers.acknowledged) >= goal, PATIENCE, 0.2)


def reads_only_by(deployment: Deployment, way: str, count: int) -> None:
    """Until the job has taken so many records this way, and meanwhile none the other way."""
    other = {"push": "pull", "pull": "push"}[way]
    deadline = time.monotonic() + PATIENCE
    while True:
        # In this order: a batch that ends between the two looks must not hide its strays.
        strays = deployment.read_by(other)
        before = deployment.read_by(way)
        eventually(
            lambda before=before, strays=strays: (
                deployment.read_by(way) >= before + count or deployment.read_by(other) != strays
            ),
            PATIENCE,
            0.5,
        )
        if before > 0 and deployment.read_by(other) == strays:
            return
        assert time.monotonic() < deadline, f"{deployment.read_by(other) - strays} records came by {other}"


def grows(deployment: Deployment, way: str, by: int = 500) -> None:
    before = deployment.read_by(way)
    eventually(lambda: deployment.read_by(way) >= before + by, PATIENCE, 0.5)


@pytest.mark.timeout(2400)
def test_the_images_build(deployment: Deployment) -> None:
    deployment.build()


def test_up_waits_until_everything_is_healthy(deployment: Deployment, numbers: Numbers) -> None:
    for service in SERVICES:
        state = deployment.inspect(service)["State"]
        assert state["Running"], service
        assert state.get("Health", {}).get("Status", "healthy") == "healthy", service


def test_a_broker_is_ready_within_seconds(deployment: Deployment, numbers: Numbers) -> None:
    for broker in ("broker-a", "broker-b"):
        seconds = deployment.ready_after(broker)
        print(f"\n{broker} ready {seconds:.2f} s after its container's start", end="")
        assert seconds < LONGEST_START


def test_no_container_has_more_rights_than_it_needs(deployment: Deployment, numbers: Numbers) -> None:
    for service in (*SERVICES, "keeper-a", "keeper-b"):
        container = deployment.inspect(service)
        host = container["HostConfig"]
        assert host["ReadonlyRootfs"], service
        assert host["CapDrop"] == ["ALL"], service
        assert "no-new-privileges:true" in host["SecurityOpt"], service
        assert container["Config"]["User"] == "10001:10001", service
        for bindings in host["PortBindings"].values():
            assert {binding["HostIp"] for binding in bindings} == {"127.0.0.1"}, service


def test_a_worker_can_not_write_the_log(deployment: Deployment, numbers: Numbers) -> None:
    touch = ("exec", "-T", "spark-worker-a", "touch")
    deployment.compose(*touch, "/run/penstock/cursors/1/probe")
    with pytest.raises(AssertionError, match="Read-only file system"):
        deployment.compose(*touch, "/run/penstock/log/1/probe")


def test_the_job_reads_by_push_from_both_nodes(deployment: Deployment, numbers: Numbers) -> None:
    reads_only_by(deployment, "push", 1500)
    for broker in ("BROKER_A_HTTP_PORT", "BROKER_B_HTTP_PORT"):
        eventually(
            lambda broker=broker: (
                deployment.metric(broker, "penstock_topic_records_out_total", topic="numbers", way="push") > 0
            ),
            PATIENCE,
            0.5,
        )


def test_the_producer_produces(deployment: Deployment, numbers: Numbers) -> None:
    def produced() -> float:
        return deployment.metric("BROKER_A_HTTP_PORT", "penstock_topic_records_in_total", topic="events")

    before = produced()
    eventually(lambda: produced() > before + 500, PATIENCE, 0.5)


def test_without_its_broker_a_worker_pulls_from_the_other(deployment: Deployment, numbers: Numbers) -> None:
    deployment.compose("stop", "spark-worker-b")
    broker = deployment.inspect("broker-a")["Id"]
    run("docker", "update", "--restart=no", broker)
    deployment.kill("broker-a")
    acknowledges_more(numbers)
    reads_only_by(deployment, "pull", 3000)  # after the last record that was in memory

    run("docker", "update", "--restart=unless-stopped", broker)
    deployment.up("broker-a")
    grows(deployment, "push")
    deployment.up("spark-worker-b")
    reads_only_by(deployment, "push", 1500)


def test_a_killed_broker_returns_by_itself(deployment: Deployment, numbers: Numbers) -> None:
    before = deployment.inspect("broker-b")["State"]["StartedAt"]
    deployment.kill("broker-b")
    acknowledges_more(numbers)
    eventually(lambda: deployment.inspect("broker-b")["State"]["StartedAt"] != before, PATIENCE, 0.2)
    deployment.await_healthy("broker-b")
    reads_only_by(deployment, "push", 1500)


def test_a_killed_worker_returns_by_itself(deployment: Deployment, numbers: Numbers) -> None:
    before = deployment.inspect("spark-worker-a")["State"]["StartedAt"]
    deployment.kill("spark-worker-a")
    eventually(lambda: deployment.inspect("spark-worker-a")["State"]["StartedAt"] != before, PATIENCE, 0.2)
    reads_only_by(deployment, "push", 1500)


def test_records_flow_while_etcd_restarts(deployment: Deployment, numbers: Numbers) -> None:
    deployment.compose("restart", "etcd")
    acknowledges_more(numbers)
    deployment.await_healthy("etcd")
    Topic(deployment.servers, "after-etcd", 2, replication=2)


def test_everything_stops_and_starts_again(deployment: Deployment, numbers: Numbers) -> None:
    deployment.compose("stop")
    deployment.up()
    acknowledges_more(numbers)
    reads_only_by(deployment, "push", 1500)


def test_every_acknowledged_record_was_delivered_once(
    deployment: Deployment, numbers: Numbers, tmp_path: Path
) -> None:
    numbers.stop()
    acknowledged = set(numbers.acknowledged)
    assert len(acknowledged) > 10_000

    def archived() -> list[archive.Kept]:
        folder = tmp_path / str(time.monotonic_ns())
        return archive.read(deployment.copy("job", "/jobs/archive", folder))

    def complete() -> bool:
        try:
            return acknowledged <= {int(kept.value) for kept in archived()}
        except FileNotFoundError:  # copied while Spark was writing: its log names a file that came later
            return False

    eventually(complete, PATIENCE, 2)
    kept = archived()
    assert not [value for value, times in Counter(int(k.value) for k in kept).items() if times > 1]
    places = Counter((record.partition, record.offset) for record in kept)
    assert set(places.values()) == {1}


def test_every_panel_has_data(deployment: Deployment, numbers: Numbers) -> None:
    """With another of the jobs, one that has state."""
    deployment.environment |= {"JOB": "count", "JOB_TOPIC": "events", "JOB_OPTIONS": ""}
    deployment.up("job", "prometheus")
    grows(deployment, "push")
    if not PANELS.exists():
        pytest.skip("there are no dashboards")
    prometheus = f"http://127.0.0.1:{deployment.ports['PROMETHEUS_PORT']}"

    def complete() -> bool:
        done = subprocess.run(
            [sys.executable, PANELS, "--prometheus", prometheus], capture_output=True, text=True
        )
        (ROOT / "artifacts" / "compose").mkdir(parents=True, exist_ok=True)
        (ROOT / "artifacts" / "compose" / "panels.txt").write_text(done.stdout + done.stderr)
        return done.returncode == 0

    eventually(complete, PATIENCE, 5)


def test_down_leaves_nothing(deployment: Deployment) -> None:
    assert deployment.left_over()
    deployment.keep_logs()
    deployment.down()
    assert deployment.left_over() == []
