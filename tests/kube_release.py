"""One release of the chart in a cluster, as the tests handle it: helm and kubectl, and load from outside."""

from __future__ import annotations

import itertools
import json
from typing import Any, NamedTuple

from confluent_kafka.admin import AdminClient, NewTopic

from cluster import QUIET, Load
from harness import eventually
from kube import CHART, SCRIPTS, get, kubectl, run

NAMESPACE = "penstock-test"
JOB = {
    "name": "count",
    "program": "/opt/penstock/jobs/count.py",
    "arguments": ["--topic", "events", "--trigger", "1 second"],
    "executorMemory": "512m",
}


class Release:
    """`it` in `penstock-test`: two brokers with volumes, workers, etcd, ports on the nodes."""

    def __init__(self, *, own_cluster: bool) -> None:
        self.own_cluster = own_cluster
        storage = 'broker.persistence={"enabled": true, "size": "1Gi", "keepAfterUninstall": false%s}'
        self._values = [
            *(
                "-f",
                str(CHART / "values-laptop.yaml"),
                "--set",
                "etcd.image.repository=etcd,etcd.image.tag=test",
            ),
            *("--set-json", storage % (', "storageClass": ""' if own_cluster else "")),
        ]
        self.jobs: list[dict[str, Any]] = []

    # helm

    def _helm(self, verb: str, *arguments: str) -> str:
        return run(
            *("helm", verb, "it", *arguments, "--namespace", NAMESPACE, "--timeout", "8m"), timeout=500
        )

    def install(self) -> None:
        self._helm("install", str(CHART), *self._values, "--set", "image.tag=test", "--wait")

    def upgrade(self, tag: str) -> None:
        jobs = f"spark.jobs={json.dumps(self.jobs)}"
        self._helm(
            "upgrade", str(CHART), *self._values, "--set", f"image.tag={tag}", "--set-json", jobs, "--wait"
        )

    def rollback(self) -> None:
        self._helm("rollback", "--wait")

    def test(self) -> str:
        return self._helm("test")  # without --logs: a pod that succeeded is removed at once

    # What is there

    def pods(self, component: str) -> list[dict[str, Any]]:
        return get("pods", NAMESPACE, "-l", f"app.kubernetes.io/component={component}")

    def pod_ids(self) -> dict[str, str]:
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.pods("broker")}

    def ready(self) -> bool:
        pods = self.pods("broker")
        return len(pods) == 2 and all(_is_ready(pod) for pod in pods)

    def wait_ready(self, timeout: float = 240) -> None:
        eventually(self.ready, timeout, 0.5)

    @property
    def bootstrap(self) -> str:
        nodes = json.loads(kubectl("get", "nodes", "-o", "json"))["items"]
        addresses = {each["type"]: each["address"] for each in nodes[0]["status"]["addresses"]}
        return ",".join(f"{addresses['InternalIP']}:{port}" for port in (30192, 30193))

    def create(self, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        for future in admin.create_topics([NewTopic(topic, partitions, 2)]).values():
            future.result(60)

    def leader(self, topic: str, partition: int) -> int:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})
        leader: int = admin.list_topics(topic, timeout=60).topics[topic].partitions[partition].leader
        return leader

    def metrics(self, pod: str, port: int) -> dict[str, float]:
        """Samples with their labels as written, through the API server: no route into pods is needed."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:{port}/proxy/metrics"
        lines = kubectl("get", "--raw", path, check=False).splitlines()
        pairs = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in pairs}

    def read_by(self, way: str) -> float:
        """Records that the job's driver has seen its executors read, by push or by pull."""
        return sum(
            value
            for pod in self.pods("spark-job")
            for name, value in self.metrics(pod["metadata"]["name"], 9645).items()
            if name.startswith("penstock_query_read_records") and f'way="{way}"' in name
        )

    def kill_container(self, pod: str, container: str) -> None:
        """kill -9 of its process, from outside; the pod and its memory stay."""
        (found,) = [each for each in self.pods("broker") if each["metadata"]["name"] == pod]
        (status,) = [each for each in found["status"]["containerStatuses"] if each["name"] == container]
        identity = status["containerID"].removeprefix("containerd://")
        run("bash", "-c", f". {SCRIPTS / 'env.sh'}; ctr tasks kill -s KILL {identity}")

    def logs(self) -> str:
        return self.look()

    def look(self) -> str:
        shown = [kubectl("get", "pods,jobs", "-o", "wide", "--namespace", NAMESPACE, check=False)]
        shown.append(kubectl("get", "events", "--namespace", NAMESPACE, check=False)[-3000:])
        options = ["--namespace", NAMESPACE, "--all-containers", "--prefix", "--tail", "40"]
        for component in ("broker", "spark-job", "etcd", "test"):
            selector = f"app.kubernetes.io/component={component}"
            shown.append(kubectl("logs", "-l", selector, *options, check=False)[-8000:])
        return "\n".join(shown)


class Pause(NamedTuple):
    """Seconds without an acknowledgement, and when they began, in seconds since what caused them."""

    length: float
    after: float

    def __str__(self) -> str:
        return f"{self.length:.2f} s (at {self.after:.0f} s)"


class TimedLoad(Load):
    """Some 2,000 records a second from outside."""

    rest = 0.01

    def pauses(self, since: float, longer_than: float = 0.25) -> list[Pause]:
        """Gaps between a partition's acknowledgements, longest first; those that overlap count as one."""
        gaps = sorted(
            (start, end - start)
            for moments in self.times.values()
            for start, end in itertools.pairwise(moments)
            if end > since and end - start > longer_than
        )
        merged: list[list[float]] = []
        for start, length in gaps:
            if merged and start < merged[-1][0] + merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], start + length - merged[-1][0])
            else:
                merged.append([start, length])
        return sorted((Pause(length, start - since) for start, length in merged), reverse=True)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]
