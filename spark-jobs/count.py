"""Counts the records of a topic, in all and per partition. By push no record is decoded for it."""

from __future__ import annotations

from penstock.spark.job import read_stream, run, start_session, streaming_arguments


def main() -> None:
    args = streaming_arguments(__doc__ or "").parse_args()
    spark = start_session("count", args, **{"spark.sql.shuffle.partitions": 2})
    counts = read_stream(spark, args).groupBy("topic", "partition").count()
    run(counts.writeStream.queryName("count").format("console").outputMode("complete"), args)


if __name__ == "__main__":
    main()
