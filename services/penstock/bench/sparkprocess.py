"""Spark as a process of an experiment: on the CPUs it should have, and gone when the rig is.

The runner makes a `SparkProcess` and calls its queries; the other side of the socket is this module run as
`python -m penstock.bench.sparkprocess SOCKET SLOTS`. Streams run in micro-batches as fast as they come and
write to a sink that drops everything; what they read is known from their progress.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from datetime import datetime
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.bench.experiment import CannotStart
from penstock.bench.queries import AD_COUNTS, AGGREGATES, QUERIES, ad_counts
from penstock.bench.rig import ProcessFailed, Rig

_START_SECONDS: Final = 120.0
_ANSWER_SECONDS: Final = 120.0
_LAST_SECONDS: Final = 10.0
_KEY: Final = b"penstock"


class Batch(NamedTuple):
    """A micro-batch: when it began (wall clock), how long it took, how many records it read."""

    started: float
    seconds: float
    records: int


class Follow(NamedTuple):
    """A stream over a topic, from its end on unless told otherwise."""

    format: str
    options: dict[str, str]
    query: str = "pass"
    tasks: int = 0
    """How many tasks share the partitions; 0: one each."""
    sink: dict[str, str] | None = None
    """Options of a sink of the same format; without them what comes out is dropped."""
    begin: str = "latest"


class SparkProcess:
    """The runner's end."""

    def __init__(self, rig: Rig, slots: int, cpus: frozenset[int] | None = None) -> None:
        socket = str(rig.directory("spark") / "socket")
        command = [sys.executable, "-m", __name__, socket, str(slots)]
        self.process = rig.spawn("spark", command, server=False, cpus=cpus)
        try:
            self.process.wait_for_line("^ready", _START_SECONDS)
        except ProcessFailed as error:
            raise CannotStart(str(error)) from None
        self._link = Client(socket, authkey=_KEY)

    def without_kafka(self) -> str | None:
        """Why Spark's own Kafka source is not there, if it isn't."""
        why: str | None = self._call("without_kafka")
        return why

    def follow(self, follow: Follow) -> None:
        """Start a stream; it knows where the topic ends, or has read something, when this returns."""
        self._call("follow", *follow)

    def batches(self) -> list[Batch]:
        """The micro-batches of the stream so far."""
        return [Batch(*each) for each in self._call("batches")]

    def idle(self) -> bool:
        """Whether the stream has read all there is."""
        found: bool = self._call("idle")
        return found

    def pushed(self) -> float:
        """The share of what the stream has read that came by push; 0 for a source that doesn't tell."""
        share: float = self._call("pushed")
        return share

    def values(self, name: str, options: dict[str, str]) -> list[str]:
        """What a topic holds."""
        found: list[str] = self._call("values", name, options)
        return found

    def stop(self, since: float) -> list[Batch]:
        """End the stream when it is done with what it had at `since`, or idle; its micro-batches."""
        return [Batch(*each) for each in self._call("stop", since)]

    def _call(self, name: str, *arguments: Any) -> Any:
        self._link.send((name, arguments))
        if not self._link.poll(_ANSWER_SECONDS):
            raise ProcessFailed(f"Spark did not answer to {name} within {_ANSWER_SECONDS:.0f} s")
        try:
            answer, error = self._link.recv()
        except EOFError:
            raise ProcessFailed(f"Spark died: {self.process.output[-1000:].strip()}") from None
        if error is not None:
            raise ProcessFailed(f"Spark, {name}: {error.splitlines()[0][:500]}")
        return answer


class _Work:
    """Spark's end: one stream at a time."""

    def __init__(self, slots: int) -> None:
        from penstock.bench.experiments.spark import start_spark

        self._spark, self._missing = start_spark(f"local[{slots}]")
        self._spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", 10_000)
        self._spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", False)
        self._query: Any = None

    def without_kafka(self) -> str | None:
        return self._missing

    def follow(
        self,
        name: str,
        options: dict[str, str],
        query: str,
        tasks: int,
        sink: dict[str, str] | None,
        begin: str,
    ) -> None:
        reader = self._spark.readStream.format(name).options(**options)
        rows = reader.option("startingOffsets", begin).load()
        rows = rows.coalesce(tasks) if tasks else rows
        rows = ad_counts(rows) if query == AD_COUNTS else QUERIES[query](rows)
        self._checkpoint = tempfile.mkdtemp(prefix="penstock-bench-checkpoint-")
        writer = rows.writeStream.format("noop" if sink is None else name).options(**(sink or {}))
        writer = writer.option("checkpointLocation", self._checkpoint)
        writer = writer.outputMode("update" if query in AGGREGATES else "append")
        self._query = writer.trigger(processingTime="0 seconds").start()
        deadline = time.monotonic() + _START_SECONDS
        while self._query.lastProgress is None and not self.idle():
            if self._query.exception() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the stream did not start: {self._query.exception()}")
            time.sleep(0.02)

    def idle(self) -> bool:
        """It knows where the topic ends, and has nothing to do."""
        message: str = self._query.status["message"]
        return message.startswith("Waiting for")

    def values(self, name: str, options: dict[str, str]) -> list[str]:
        rows = self._spark.read.format(name).options(**options).load()
        return [row.value for row in rows.selectExpr("cast(value as string) as value").collect()]

    def stop(self, since: float) -> list[tuple[float, float, int]]:
        deadline = time.monotonic() + _LAST_SECONDS
        while time.monotonic() < deadline and not self._is_past(since):
            time.sleep(0.02)
        self._query.stop()
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        failure = self._query.exception()
        if failure is not None:
            raise RuntimeError(str(failure))
        return self.batches()

    def _is_past(self, since: float) -> bool:
        batches = self.batches()
        done = bool(batches) and batches[-1][0] + batches[-1][1] >= since
        return done or self.idle() or self._query.exception() is not None

    def pushed(self) -> float:
        progress = self._query.lastProgress
        metrics = progress["sources"][0].get("metrics", {}) if progress else {}
        pushed, pulled = (int(metrics.get(name, 0)) for name in ("pushRecords", "pullRecords"))
        return pushed / (pushed + pulled) if pushed else 0.0

    def batches(self) -> list[tuple[float, float, int]]:
        return [
            (
                datetime.fromisoformat(each["timestamp"]).timestamp(),
                each["durationMs"].get("triggerExecution", 0) / 1e3,
                each["numInputRows"],
            )
            for each in self._query.recentProgress
        ]


def _serve(link: Connection, work: _Work) -> None:
    while True:
        try:
            name, arguments = link.recv()
        except EOFError:
            return
        try:
            link.send((getattr(work, name)(*arguments), None))
        except Exception as error:
            link.send((None, f"{type(error).__name__}: {error}"))


if __name__ == "__main__":
    # It ends by kill -9: whatever it leaves must lie where the rig removes it.
    own = str(Path(sys.argv[1]).parent)
    tempfile.tempdir = os.environ["SPARK_LOCAL_DIRS"] = own
    os.environ["JAVA_TOOL_OPTIONS"] = f"-Djava.io.tmpdir={own}"
    made = _Work(int(sys.argv[2]))
    with Listener(sys.argv[1], authkey=_KEY) as door:
        print("ready", flush=True)
        with door.accept() as accepted:
            _serve(accepted, made)
