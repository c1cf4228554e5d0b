"""The demo's PySpark job, a process of its own: the same stream by push, then by pull.

Run by the demo as `python -m penstock.demo.job`; reports on standard output, one JSON object per line:
`{"event": "ready"}`, then for each micro-batch its records, offsets per partition and latency, then for
each mode how fast all of the topic is read again. Ends a phase when a line comes on standard input.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count, expr, length, max, min, sum

from penstock.spark import session


def report(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def source(mode: str, args: argparse.Namespace) -> dict[str, str]:
    return {"penstock.bootstrap.servers": args.servers, "subscribe": args.topic, "mode": mode}


class Phase:
    """One mode's streaming query."""

    def __init__(self, spark: SparkSession, mode: str, start: str, args: argparse.Namespace) -> None:
        self._mode = mode
        self._ends: dict[int, int] = {}
        stream = spark.readStream.format("penstock").options(**source(mode, args))
        self._query = (
            stream.option("startingOffsets", start)
            .load()
            .writeStream.foreachBatch(self._batch)
            .option("checkpointLocation", tempfile.mkdtemp(prefix="penstock-demo-"))
            .start()
        )

    def _batch(self, batch: DataFrame, batch_id: int) -> None:
        """The job: filter and summarise. What arrived is told by offset, so that nothing can hide."""
        started = time.time()
        rows = (
            batch.groupBy("partition")
            .agg(
                count("*").alias("records"),
                min("offset").alias("first"),
                max("offset").alias("last"),
                sum(length("value")).alias("bytes"),
                expr("percentile_approx(unix_millis(timestamp), array(0.01, 0.5), 1000)").alias("times"),
            )
            .collect()
        )
        now = time.time() * 1000
        for row in rows:
            self._ends[row["partition"]] = row["last"] + 1
        if rows:
            report(
                event="batch",
                mode=self._mode,
                id=batch_id,
                seconds=now / 1000 - started,
                partitions=[[row["partition"], row["first"], row["last"], row["records"]] for row in rows],
                p50=now - sorted(row["times"][1] for row in rows)[len(rows) // 2],
                p99=now - sorted(row["times"][0] for row in rows)[0],
            )

    def finish(self, until: dict[int, int] | None = None) -> str:
        """Stop, after everything below `until` has come; returns where the next phase goes on."""
        deadline = time.monotonic() + 60
        while until and time.monotonic() < deadline:
            if all(self._ends.get(partition, 0) >= end for partition, end in until.items()):
                break
            time.sleep(0.1)
        self._query.processAllAvailable()
        self._query.stop()
        ends = {str(partition): end for partition, end in sorted(self._ends.items())}
        return json.dumps(ends)


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
    start = "earliest"
    for mode in ("push", "pull"):
        sys.stdin.readline()
        phase = Phase(spark, mode, start, args)
        report(event="started", mode=mode)
        until = json.loads(sys.stdin.readline() or "{}")
        ends = phase.finish({int(partition): end for partition, end in until.items()})
        start = json.dumps({args.topic: json.loads(ends)})
        report(event="finished", mode=mode)
    for _ in range(2):  # the first round warms both up
        speeds = {}
        for mode in ("push", "pull"):
            records, seconds = read_everything(spark, mode, args)
            speeds[mode] = {"records": records, "seconds": seconds}
    report(event="replay", **speeds)
    threading.Timer(5, lambda: sys.exit(0)).start()
    spark.stop()


if __name__ == "__main__":
    main()
