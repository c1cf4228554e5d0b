"""A real standalone cluster on this machine: Spark's own master and workers, each a process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil
import pyspark

from harness import eventually, free_port

SPARK_HOME = Path(pyspark.__file__).parent
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class StandaloneCluster:
    """A master, and a worker for each of some addresses of this machine; workers start executors, and start
    them again. An executor's working directory lies in its worker's, which is named after the address."""

    def __init__(self, directory: Path, hosts: Sequence[str] = ("127.0.0.1",), cores: int = 2) -> None:
        self._directory = directory
        self._hosts = hosts
        self._cores = cores
        self._port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True)
        here = ("--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0")
        log = self._start("master", "org.apache.spark.deploy.master.Master", *here)
        eventually(lambda: "New state: ALIVE" in log.read_text(), timeout=90, interval=0.1)
        size = ("--cores", str(self._cores), "--memory", "1g", "--webui-port", "0")
        logs = []
        for host in self._hosts:
            work = ("--host", host, "--work-dir", str(self._directory / host))
            logs.append(self._start(host, "org.apache.spark.deploy.worker.Worker", *work, *size, self.master))
        for log in logs:
            eventually(lambda: "Successfully registered" in log.read_text(), timeout=90, interval=0.1)  # noqa: B023
        return self

    def _start(self, name: str, *command: str) -> Path:
        log = self._directory / f"{name}.log"
        # The master gives an application up after ten executors that ended badly: here they all do.
        environment = {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m"}
        environment["SPARK_MASTER_OPTS"] = "-Dspark.deploy.maxExecutorRetries=-1"
        with log.open("wb") as out:
            self._processes.append(
                subprocess.Popen(
                    [str(SPARK_HOME / "bin" / "spark-class"), *command],
                    env={**os.environ, **environment},
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        return log

    def executors(self) -> list[psutil.Process]:
        found = []
        for worker in self._processes[1:]:
            for child in psutil.Process(worker.pid).children(recursive=True):
                try:
                    if EXECUTOR in child.cmdline():
                        found.append(child)
                except psutil.NoSuchProcess:  # ended meanwhile
                    continue
        return found

    def __exit__(self, *_: object) -> None:
        executors = self.executors()
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        for executor in executors:
            if executor.is_running():
                executor.kill()
