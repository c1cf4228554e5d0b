"""`docker compose` as a user types it, and what the cluster says of itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

from harness import eventually, free_port

ROOT: Final = Path(__file__).parents[2]
PROJECT: Final = "penstock-test"
PORTS: Final = (
    "BROKER_A_PORT",
    "BROKER_B_PORT",
    "BROKER_A_HTTP_PORT",
    "BROKER_B_HTTP_PORT",
    "SPARK_MASTER_UI_PORT",
    "JOB_UI_PORT",
    "JOB_METRICS_PORT",
    "PROMETHEUS_PORT",
)


class Deployment:
    """One compose project with ports of its own. Grafana is left out: its image can't be had everywhere."""

    def __init__(self) -> None:
        self.ports = {name: free_port() for name in PORTS}
        self.environment = {
            **os.environ,
            **{name: str(port) for name, port in self.ports.items()},
            "COMPOSE_PROJECT_NAME": PROJECT,
            "COMPOSE_PROFILES": "",
            "PENSTOCK_IMAGE": "penstock:test",
            "ETCD_IMAGE": "penstock-etcd",
            "PROMETHEUS_IMAGE": "penstock-prometheus",
            # Half a dozen JVMs start at once: on one core that takes a while.
            "WORKER_A_CPUS": "0-1",
            "WORKER_B_CPUS": "0-1",
            "PRODUCER_RATE": "1000",
            "PRODUCER_CHUNK": "1KiB",
        }

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.ports['BROKER_A_PORT']},127.0.0.1:{self.ports['BROKER_B_PORT']}"

    def compose(self, *arguments: str, timeout: float = 240, **variables: str) -> str:
        return run("docker", "compose", *arguments, timeout=timeout, env={**self.environment, **variables})

    def build(self) -> None:
        # One service stands for all that share its image.
        self.compose("build", "broker-a", timeout=1500)
        self.compose("--profile", "images", "build", "etcd-image", "prometheus-image", timeout=900)

    def up(self, *services: str, **variables: str) -> None:
        self.compose(
            "up", "-d", "--no-build", "--wait", "--wait-timeout", "480", *services, timeout=540, **variables
        )

    def down(self) -> None:
        self.compose("--profile", "*", "down", "-v", "--remove-orphans", "--timeout", "5", timeout=300)

    def keep_logs(self) -> None:
        folder = ROOT / "artifacts" / "compose"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "containers.log").write_text(self.compose("--ansi", "never", "logs", "--timestamps"))

    def left_over(self) -> list[str]:
        """Containers, volumes and networks of the project."""
        label = f"label=com.docker.compose.project={PROJECT}"
        kinds = (("ps", "-a"), ("volume", "ls"), ("network", "ls"))
        return [name for kind in kinds for name in run("docker", *kind, "-q", "--filter", label).split()]

    # One service

    def inspect(self, service: str) -> dict[str, Any]:
        container = self.compose("ps", "-a", "-q", service).strip()
        (found,) = json.loads(run("docker", "inspect", container))
        return dict(found)

    def ready_after(self, service: str) -> float:
        """Seconds from its container's start until a broker said that it is ready."""
        container = self.inspect(service)
        said = run("docker", "logs", "--timestamps", container["Id"]).splitlines()
        ready = next(line.split()[0] for line in reversed(said) if " ready: " in line)
        return (_moment(ready) - _moment(container["State"]["StartedAt"])).total_seconds()

    def kill(self, service: str) -> None:
        """kill -9 from outside, so that the restart policy applies; `docker kill` would count as a wish."""
        os.kill(self.inspect(service)["State"]["Pid"], signal.SIGKILL)

    def is_healthy(self, service: str) -> bool:
        state = self.inspect(service)["State"]
        return bool(state["Running"] and state["Health"]["Status"] == "healthy")

    def await_healthy(self, service: str, timeout: float = 240) -> None:
        eventually(lambda: self.is_healthy(service), timeout, 0.5)

    def copy(self, service: str, path: str, target: Path) -> Path:
        self.compose("cp", f"{service}:{path}", str(target))
        return target

    # What it says of itself

    def get(self, port: str, path: str) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[port]}/{path}", timeout=5) as answer:
            content: bytes = answer.read()
            return content

    def metric(self, port: str, name: str, **labels: str) -> float:
        """The sum of a metric's samples with these labels; 0 where it isn't there, or nobody answers."""
        try:
            text = self.get(port, "metrics").decode()
        except OSError:
            return 0.0
        return sum(
            sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def read_by(self, way: str) -> float:
        """Records that the job has read by push or by pull since it started."""
        return self.metric("JOB_METRICS_PORT", "penstock_query_read_records_total", way=way)


def _moment(text: str) -> datetime:
    """Docker writes nanoseconds, Python reads microseconds."""
    return datetime.fromisoformat(text[:26].rstrip("Z") + "+00:00")


def run(*command: str, timeout: float = 120, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
