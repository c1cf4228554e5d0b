"""What the jobs in spark-jobs/ have in common: their options, their source, and waiting for the end.

A job is a plain PySpark program; this spares each the same twenty lines.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import TYPE_CHECKING, Any

from penstock.spark import session
from penstock.spark.kafka_source import kafka_jars
from penstock.spark.latency import observe_latency

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def arguments(description: str, *, topic: str = "events") -> argparse.ArgumentParser:
    """The options every job has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--servers", default="localhost:9092", help="bootstrap servers, host:port[,host:port]"
    )
    parser.add_argument("--topic", default=topic, help="the topic to read")
    parser.add_argument(
        "--source", choices=("penstock", "kafka"), default="penstock", help="Spark's data source"
    )
    parser.add_argument(
        "--mode", choices=("auto", "push", "pull"), default="auto", help="how the penstock source reads"
    )
    parser.add_argument("--master", help="Spark's master; local[*] unless spark-submit says otherwise")
    parser.add_argument(
        "--starting-offsets",
        default="earliest",
        help="earliest, latest or JSON, for a query without checkpoint",
    )
    parser.add_argument(
        "--checkpoint", help="where the query keeps its offsets; a temporary folder if not given"
    )
    parser.add_argument(
        "--metrics-port", type=int, help="serve the query's progress to Prometheus on this port"
    )
    parser.add_argument(
        "--latency",
        action=argparse.BooleanOptionalAction,
        help="measure latency by every record's timestamp; on with --metrics-port unless told not to",
    )
    return parser


def streaming_arguments(description: str, **defaults: str) -> argparse.ArgumentParser:
    """The options of a job that reads a stream in micro-batches."""
    parser = arguments(description, **defaults)
    parser.add_argument("--trigger", default="1 second", help="time between micro-batches")
    parser.add_argument("--once", action="store_true", help="read what is there now, then end")
    return parser


def start_session(name: str, args: argparse.Namespace, local: str = "local[*]", **confs: Any) -> SparkSession:
    """`local` is the master where neither --master nor spark-submit names one."""
    if args.source == "kafka":
        confs["spark.jars"] = ",".join(map(str, kafka_jars()))
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    spark = session(name, args.master or (None if submitted else local), **confs)
    spark.sparkContext.setLogLevel("WARN")
    if args.metrics_port:
        from penstock.spark.listener import export_progress

        export_progress(spark, args.metrics_port)
    return spark


def source_options(args: argparse.Namespace) -> dict[str, str]:
    options = {"kafka.bootstrap.servers": args.servers, "subscribe": args.topic}
    if args.source == "penstock":
        options["mode"] = args.mode
    return options


def read_stream(spark: SparkSession, args: argparse.Namespace) -> DataFrame:
    """The topic as a streaming DataFrame: this is all that differs between the two sources."""
    reader = spark.readStream.format(args.source).options(**source_options(args))
    records = reader.option("startingOffsets", args.starting_offsets).load()
    if args.latency if args.latency is not None else args.metrics_port:
        records = observe_latency(records, real_time=bool(getattr(args, "real_time", None)))
    return records


def run(writer: DataStreamWriter, args: argparse.Namespace) -> None:
    """Starts the query and waits for its end, or for Ctrl-C. A checkpoint that nobody named goes with it."""
    with tempfile.TemporaryDirectory(prefix="penstock-checkpoint-", ignore_cleanup_errors=True) as unnamed:
        writer = writer.option("checkpointLocation", args.checkpoint or unnamed)
        if getattr(args, "real_time", None):
            writer = writer.trigger(realTime=args.real_time)  # type: ignore[call-overload]
        elif args.once:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=args.trigger)
        query = writer.start()
        try:
            query.awaitTermination()
        except KeyboardInterrupt:
            query.stop()
