"""Real time: reads a topic, keeps some records, adds a column from a small table, writes to another topic.

A record is in the output topic about a millisecond after it was produced. The key names the region a record
comes from; regions are joined by broadcast, since real-time mode takes no Python functions.
"""

from __future__ import annotations

from pyspark.sql.functions import broadcast, col, struct, to_json

from penstock.spark.job import arguments, read_stream, run, start_session

REGIONS = [("eu", "Europe"), ("us", "America"), ("ap", "Asia")]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--output", default="routed", help="the topic to write")
    parser.add_argument(
        "--real-time", default="1 minute", help="length of a real-time batch, 5 seconds at least"
    )
    parser.add_argument("--filter", default="length(value) > 0", help="which records to keep, in SQL")
    args = parser.parse_args()
    spark = start_session("route", args)
    regions = spark.createDataFrame(REGIONS, "region string, continent string")
    records = read_stream(spark, args).selectExpr(
        "cast(key as string) as region", "cast(value as string) as value", "timestamp"
    )
    routed = (
        records.filter(args.filter)
        .join(broadcast(regions), "region")
        .select(col("region").alias("key"), to_json(struct("continent", "value", "timestamp")).alias("value"))
    )
    writer = routed.writeStream.queryName("route").format(args.source).outputMode("update")
    run(writer.option("kafka.bootstrap.servers", args.servers).option("topic", args.output), args)


if __name__ == "__main__":
    main()
