"""A real standalone cluster on this machine: Spark's own master and worker, each a process."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Self

import psutil
import pyspark

from harness import eventually, free_port

SPARK_HOME = Path(pyspark.__file__).parent
EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


class StandaloneCluster:
    """One master and one worker with two cores; the worker starts executors, and starts them again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True)
        here = ("--host", "127.0.0.1", "--webui-port", "0")
        log = self._start("master", "org.apache.spark.deploy.master.Master", *here, "--port", str(self._port))
        eventually(lambda: "New state: ALIVE" in log.read_text(), timeout=90, interval=0.3)
        work = ("--work-dir", str(self._directory / "work"), "--cores", "2", "--memory", "1g")
        log = self._start("worker", "org.apache.spark.deploy.worker.Worker", *here, *work, self.master)
        eventually(lambda: "Successfully registered" in log.read_text(), timeout=90, interval=0.3)
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
        for child in psutil.Process(self._processes[-1].pid).children(recursive=True):
            try:
                if EXECUTOR in child.cmdline():
                    found.append(child)
            except psutil.NoSuchProcess:  # ended meanwhile
                continue
        return found

    def __exit__(self, *_: object) -> None:
        executors = self.executors() if len(self._processes) > 1 else []
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        for executor in executors:
            if executor.is_running():
                executor.kill()
