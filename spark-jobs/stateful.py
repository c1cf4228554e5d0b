"""Real time with state: keeps a count and the latest time per key, and writes every change to a topic.

Spark needs free slots for the source's tasks and for the shuffle's at the same time: with 1 shuffle partition
on local[3] two tasks follow the topic's partitions, however many there are.
"""

from __future__ import annotations

from pyspark.sql.functions import col, count, max, struct, to_json

from penstock.spark.job import arguments, read_stream, run, start_session


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--output", default="totals", help="the topic to write")
    parser.add_argument(
        "--real-time", default="1 minute", help="length of a real-time batch, 5 seconds at least"
    )
    parser.add_argument("--shuffle-partitions", type=int, default=1, help="tasks that hold the state")
    args = parser.parse_args()
    shuffle = {"spark.sql.shuffle.partitions": args.shuffle_partitions}
    spark = start_session("stateful", args, "local[3]", **shuffle)
    totals = (
        read_stream(spark, args)
        .groupBy(col("key").cast("string").alias("key"))
        .agg(count("*").alias("records"), max("timestamp").alias("latest"))
        .select("key", to_json(struct("records", "latest")).alias("value"))
    )
    writer = totals.writeStream.queryName("stateful").format(args.source).outputMode("update")
    run(writer.option("kafka.bootstrap.servers", args.servers).option("topic", args.output), args)


if __name__ == "__main__":
    main()
