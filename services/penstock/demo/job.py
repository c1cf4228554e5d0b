"""The demo's PySpark job, a process of its own: the same stream by push and by pull, in phases.

Run by the demo as `python -m penstock.demo.job`; reports on standard output, one JSON object per line:
`{"event": "ready"}`, then for each micro-batch its records, offsets per partition and latency, then for
each mode how fast all of the topic is read again. A mode on standard input begins a phase, the next line
ends it and says up to where it must have read; "replay" asks for the last part.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
import tempfile
import threading
import time
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, count, expr, length, sum

from penstock.spark import session


def report(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def source(mode: str, args: argparse.Namespace) -> dict[str, str]:
    return {"penstock.bootstrap.servers": args.servers, "subscribe": args.topic, "mode": mode}


class Phase:
    """One mode's streaming query. What arrived is told by offset, so that nothing can hide; it comes with
    each micro-batch's progress, observed on its way through the query."""

    def __init__(
        self, spark: SparkSession, mode: str, begin: dict[int, int], args: argparse.Namespace
    ) -> None:
        self._mode = mode
        self._ends = dict(begin)
        self._reported = -1
        partitions = range(args.partitions)
        stream = spark.readStream.format("penstock").options(**source(mode, args))
        start = json.dumps({args.topic: begin}) if begin else "earliest"
        records = stream.option("startingOffsets", start).load()
        seen = records.observe(
            "seen",
            *(expr(f"count_if(partition = {p})").alias(f"records{p}") for p in partitions),
            *(expr(f"min(if(partition = {p}, offset, null))").alias(f"first{p}") for p in partitions),
            *(expr(f"max(if(partition = {p}, offset, null))").alias(f"last{p}") for p in partitions),
            expr("percentile_approx(unix_millis(timestamp), array(0.01, 0.5), 1000)").alias("times"),
        )
        self._query = (
            seen.filter(length("value") > 0)
            .writeStream.format("noop")
            .option("checkpointLocation", tempfile.mkdtemp(dir=args.directory))
            .start()
        )
        self._partitions = partitions

    def tell(self) -> None:
        """Report the micro-batches that ended since the last call."""
        for progress in self._query.recentProgress:
            if progress["batchId"] <= self._reported or not progress["numInputRows"]:
                continue
            self._reported = progress["batchId"]
            seen = progress["observedMetrics"]["seen"]
            ended = datetime.fromisoformat(progress["timestamp"]).timestamp() * 1000
            ended += progress["durationMs"]["triggerExecution"]
            batches = []
            for partition in self._partitions:
                if seen[f"records{partition}"]:
                    first, last = seen[f"first{partition}"], seen[f"last{partition}"]
                    batches.append([partition, first, last, seen[f"records{partition}"]])
                    self._ends[partition] = last + 1
            report(
                event="batch",
                mode=self._mode,
                id=progress["batchId"],
                partitions=batches,
                p50=ended - seen["times"][1],
                p99=ended - seen["times"][0],
            )
        if self._query.exception() is not None:
            raise SystemExit(str(self._query.exception()))

    def finish(self, until: dict[int, int]) -> dict[int, int]:
        """Stop, after everything below `until` has come; returns where the next phase goes on."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            self.tell()
            if all(self._ends.get(partition, 0) >= end for partition, end in until.items()):
                break
            time.sleep(0.1)
        self._query.stop()
        self.tell()
        return self._ends


class Lines:
    """Standard input, so that one can look whether a line is there."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        os._exit(0)  # the demo is gone: so are we

    def waiting(self) -> bool:
        return not self._lines.empty()

    def next(self) -> str:
        return self._lines.get()


def read_everything(spark: SparkSession, mode: str, args: argparse.Namespace) -> tuple[int, float]:
    """All of the topic once more, as a batch query that looks at every value."""
    frame = spark.read.format("penstock").options(**source(mode, args)).load()
    started = time.monotonic()
    row = frame.agg(count("*").alias("records"), sum(length(col("value"))).alias("bytes")).first()
    return row["records"] if row else 0, time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--directory", required=True, help="for checkpoints; goes with the demo")
    parser.add_argument("--master", default="local[2]")
    args = parser.parse_args()
    spark = session(
        "penstock demo",
        args.master,
        **{
            "spark.ui.enabled": False,
            "spark.sql.shuffle.partitions": 2,
            "spark.ui.showConsoleProgress": False,
        },
    )
    spark.sparkContext.setLogLevel("ERROR")
    read_everything(spark, "push", args)  # the first query pays for Spark's own start
    report(event="ready")
    ends: dict[int, int] = {}
    lines = Lines()
    while (mode := lines.next().strip()) != "replay":
        phase = Phase(spark, mode, ends, args)
        report(event="started", mode=mode)
        while not lines.waiting():
            phase.tell()
            time.sleep(0.1)
        until = json.loads(lines.next())
        ends = phase.finish({int(partition): end for partition, end in until.items()})
        report(event="finished", mode=mode)
    for _ in range(2):  # the first round warms both up
        speeds = {}
        for mode in ("push", "pull"):
            records, seconds = read_everything(spark, mode, args)
            speeds[mode] = {"records": records, "seconds": seconds}
    report(event="replay", **speeds)
    spark.stop()


if __name__ == "__main__":
    main()
