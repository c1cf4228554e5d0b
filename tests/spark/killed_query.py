"""The query of the kill tests: one driver, a process of its own, with two streams over one topic into sinks
that are idempotent: files, and batches written by `foreachBatch`. Run as a program it is that driver."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from topics import Topic

SINKS = ("files", "batches")
PATIENCE = 240.0
"""A busy machine takes minutes to start a driver and its executors."""
COLUMNS = ("partition", "offset", "cast(cast(value as string) as long) as number")


class Query:
    def __init__(self, directory: Path, topic: Topic) -> None:
        self._directory = directory
        self._topic = topic

    @contextlib.contextmanager
    def running(self, master: str = "local[2]") -> Iterator[None]:
        """The driver dies at the end, by kill -9."""
        command = [
            sys.executable,
            __file__,
            master,
            self._topic.servers,
            self._topic.name,
            str(self._directory),
        ]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with (self._directory / "driver.log").open("ab") as log:
            driver = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=environment
            )
        try:
            yield
            assert driver.poll() is None, self.log()
        finally:
            # The session of the driver: python, and the JVM it started.
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()

    def log(self) -> str:
        return (self._directory / "driver.log").read_text(errors="replace")[-5000:]

    def await_commit(self) -> None:
        """Each stream ends a batch."""
        before = {sink: self._last(sink, "commits") for sink in SINKS}
        for sink in SINKS:
            eventually(lambda: self._last(sink, "commits") > before[sink], PATIENCE, 0.1)  # noqa: B023

    def await_end(self) -> None:
        """Each stream commits what the log ends with now."""
        end = self._topic.ends()
        for sink in SINKS:
            eventually(lambda: self._committed(sink) == end, PATIENCE, 0.3)  # noqa: B023

    def _last(self, sink: str, log: str) -> int:
        files = (self._directory / sink / "checkpoint" / log).glob("[0-9]*")
        return max((int(file.name) for file in files if file.suffix == ""), default=-1)

    def _committed(self, sink: str) -> dict[int, int] | None:
        last = self._last(sink, "commits")
        if last < 0:
            return None
        text = (self._directory / sink / "checkpoint" / "offsets" / str(last)).read_text().splitlines()[-1]
        return {int(partition): offset for partition, offset in json.loads(text)[self._topic.name].items()}

    def rows(self, spark: SparkSession, sink: str) -> Counter[tuple[int, int, int]]:
        """(partition, offset, number) of all that was written."""
        written = spark.read.parquet(str(self._directory / sink / "out"))
        return Counter(tuple(row) for row in written.select("partition", "offset", "number").collect())


def drive(master: str, servers: str, topic: str, directory: str) -> None:
    from penstock.spark import session

    # One core each, so that there are several executors and one of them is left when another dies.
    confs = {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m", "spark.executor.cores": 1}
    spark = session("killed", master, **{"spark.ui.enabled": False, **confs})
    spark.sparkContext.setLogLevel("WARN")

    def stream(sink: str) -> Any:
        rows = spark.readStream.format("penstock").option("kafka.bootstrap.servers", servers)
        rows = rows.option("subscribe", topic).option("startingOffsets", "earliest").load()
        writer = rows.selectExpr(*COLUMNS).writeStream.trigger(processingTime="300 milliseconds")
        return writer.option("checkpointLocation", f"{directory}/{sink}/checkpoint")

    def write(batch: Any, number: int) -> None:
        batch.write.mode("overwrite").parquet(f"{directory}/batches/out/batch={number}")

    stream("files").format("parquet").option("path", f"{directory}/files/out").start()
    stream("batches").foreachBatch(write).start()
    spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    drive(*sys.argv[1:])
