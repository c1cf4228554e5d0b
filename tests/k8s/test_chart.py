"""The Helm chart on a real Kubernetes: installed, used, broken, upgraded, and gone without a trace."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cluster import check, read_all
from harness import eventually
from kube import CHART, PATH, VALUES, get, kubectl, run
from kube_release import JOB, NAMESPACE, Pause, Release, TimedLoad

pytestmark = pytest.mark.k8s
PARTITIONS = 4
# What a test allows on a machine that does other things too; docs/kubernetes.md has what was measured.
LONGEST_PAUSE = 15.0
PATIENCE = 240.0


@contextmanager
def under_load(release: Release, topic: str) -> Iterator[TimedLoad]:
    """Load for the length of a block, then: every acknowledged record is there once, in order."""
    release.create(topic, PARTITIONS)
    load = TimedLoad(release, topic, PARTITIONS)
    load.start()
    load.progress(1000, PATIENCE)
    yield load
    load.progress(1000, PATIENCE)
    load.finish()
    total = check(load, read_all(release.bootstrap, topic, PARTITIONS))
    print(f"\n{topic}: {total} acknowledged records, each there once")


def shown(pauses: list[Pause]) -> str:
    return ", ".join(map(str, pauses[:8])) or "none over 0.25 s"


def longest(pauses: list[Pause]) -> float:
    return max((pause.length for pause in pauses), default=0.0)


@pytest.mark.parametrize("values", VALUES)
def test_the_api_server_takes_what_each_values_file_makes(release: Release, values: str) -> None:
    """Without monitors: their kinds are an operator's, which this cluster doesn't have."""
    options = [
        *("--set", "monitoring.podMonitor.enabled=false,monitoring.rules.enabled=false"),
        *("--set", "external.enabled=false"),  # its ports are taken, by the release that is there
        *("--set", "serviceAccount.name=default"),  # a pod must have one before it is admitted
    ]
    jobs = json.dumps([{**JOB, "checkpoint": {"size": "1Gi"}}])
    objects = run(
        *("helm", "template", "dry", str(CHART), "-f", str(CHART / values), "--namespace", NAMESPACE),
        *(*options, "--set-json", f"spark.jobs={jobs}"),
    )
    kubectl("apply", "--dry-run=server", "--namespace", NAMESPACE, "-f", "-", stdin=objects)


def test_helm_test_produces_and_reads_by_push(release: Release) -> None:
    """The job behind it ends with 0 only if every record came, out of shared memory alone."""
    assert re.search(r"Phase: +Succeeded", release.test())


def test_a_worker_can_not_touch_the_log(release: Release) -> None:
    into = ["exec", "it-broker-0", "--namespace", NAMESPACE, "-c", "spark-worker", "--"]
    kubectl(
        *into, "sh", "-c", "cd /run/penstock && touch cursors/probe && rm cursors/probe && ! touch log/probe"
    )
    assert "uid=10001" in kubectl(*into, "id")
    kubectl(*into, "sh", "-c", "! ls /var/run/secrets/kubernetes.io")


def test_a_job_from_the_values_reads_by_push(release: Release) -> None:
    release.create("events", PARTITIONS)
    release.jobs = [JOB]
    release.upgrade("test")
    load = TimedLoad(release, "events", PARTITIONS).start()
    eventually(lambda: release.read_by("push") > 1000, PATIENCE, 1)
    load.finish()
    eventually(lambda: release.read_by("push") + release.read_by("pull") >= load.count, PATIENCE, 1)
    ways = {way: release.read_by(way) for way in ("push", "pull")}
    print(f"\nof {load.count} records the job read {ways['push']:.0f} by push, {ways['pull']:.0f} by pull")
    # Pulled are those that were there before an executor was beside each broker.
    assert ways["push"] > ways["pull"]


def test_a_brokers_process_killed_under_load(release: Release) -> None:
    """Its pod stays, and so does its memory."""
    if not release.own_cluster:
        pytest.skip("only the own cluster's containers can be killed from outside")
    with under_load(release, "process-killed") as load:
        victim = f"it-broker-{release.leader('process-killed', 0)}"
        before = release.pod_ids()
        moment = time.monotonic()
        release.kill_container(victim, "broker")
        load.progress(5000, PATIENCE)
        eventually(lambda: _restarts(release, victim) >= 1, PATIENCE, 0.5)
        release.wait_ready()
        assert release.pod_ids() == before
        print(f"\nkill -9 of a broker: ready again after {time.monotonic() - moment:.1f} s", end="")
        print(f", pauses {shown(load.pauses(moment))}", end="")
        assert longest(load.pauses(moment)) < LONGEST_PAUSE


def test_a_pod_killed_under_load(release: Release) -> None:
    """Without a word, and with its memory; its volume is as its last write left it."""
    with under_load(release, "pod-killed") as load:
        victim = f"it-broker-{release.leader('pod-killed', 0)}"
        before = release.pod_ids()
        moment = time.monotonic()
        kubectl("delete", "pod", victim, "--namespace", NAMESPACE, "--force", "--grace-period=0")
        load.progress(5000, PATIENCE)
        eventually(lambda: release.pod_ids().get(victim, before[victim]) != before[victim], PATIENCE, 0.5)
        release.wait_ready()
        print(f"\na pod killed: ready again after {time.monotonic() - moment:.1f} s", end="")
        print(f", pauses {shown(load.pauses(moment))}", end="")
        assert longest(load.pauses(moment)) < LONGEST_PAUSE


def test_a_node_drained_under_load(release: Release) -> None:
    """One broker goes, the other is kept by the budget until the first is back: here that needs the node."""
    (node,) = {pod["spec"]["nodeName"] for pod in release.pods("broker")}
    with under_load(release, "drained") as load:
        before = release.pod_ids()
        moment = time.monotonic()
        drain = subprocess.Popen(
            [
                *("kubectl", "drain", node, "--pod-selector=app.kubernetes.io/component=broker"),
                *("--delete-emptydir-data", "--ignore-daemonsets", "--timeout=40s"),
            ],
            env={**os.environ, "PATH": PATH},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said, _ = drain.communicate(timeout=PATIENCE)
            assert drain.returncode != 0
            assert "violate the pod's disruption budget" in said
            left = [
                pod
                for pod in release.pods("broker")
                if before[pod["metadata"]["name"]] == pod["metadata"]["uid"]
                and "deletionTimestamp" not in pod["metadata"]
            ]
            assert len(left) == 1
            load.progress(1000, PATIENCE)
        finally:
            kubectl("uncordon", node)
        release.wait_ready()
        print(f"\na node drained: pauses {shown(load.pauses(moment))}", end="")
        assert longest(load.pauses(moment)) < LONGEST_PAUSE


def test_upgrade_and_rollback_under_load(release: Release) -> None:
    with under_load(release, "upgraded") as load:
        before = release.pod_ids()
        for change, tag in ((lambda: release.upgrade("test2"), "test2"), (release.rollback, "test")):
            moment = time.monotonic()
            change()
            release.wait_ready()
            took = time.monotonic() - moment
            load.progress(1000, PATIENCE)
            images = {c["image"] for pod in release.pods("broker") for c in pod["spec"]["containers"]}
            assert images == {f"penstock:{tag}"}
            after = release.pod_ids()
            assert not set(after.values()) & set(before.values())
            before = after
            print(f"\nto {tag}: {took:.0f} s, pauses {shown(load.pauses(moment))}", end="")
            assert longest(load.pauses(moment)) < LONGEST_PAUSE


def test_push_goes_on_after_all_that(release: Release) -> None:
    """Workers and executors were restarted with every broker; the job found its way back."""
    # Only what is new can come by push: what was there before is on disk since its brokers' memory went.
    before = release.read_by("push")
    load = TimedLoad(release, "events", PARTITIONS).start()
    eventually(lambda: release.read_by("push") > before + 1000, PATIENCE, 1)
    load.finish()


def test_uninstall_leaves_nothing(release: Release) -> None:
    run("helm", "uninstall", "it", "--namespace", NAMESPACE, "--wait", "--timeout", "4m")
    kinds = "all,pvc,configmaps,secrets,serviceaccounts,networkpolicies,poddisruptionbudgets,endpointslices"

    def left() -> list[str]:
        found = get(kinds, NAMESPACE)
        names = [f"{each['kind']}/{each['metadata']['name']}" for each in found]
        return [
            name for name in names if name not in ("ServiceAccount/default", "ConfigMap/kube-root-ca.crt")
        ]

    eventually(lambda: not left(), PATIENCE, 1)


def _restarts(release: Release, pod: str) -> int:
    (found,) = [each for each in release.pods("broker") if each["metadata"]["name"] == pod]
    return sum(
        each["restartCount"] for each in found["status"]["containerStatuses"] if each["name"] == "broker"
    )
