"""Counts the words of a topic, the program that every streaming system begins with."""

from __future__ import annotations

from pyspark.sql.functions import col, explode, split

from penstock.spark.job import read_stream, run, start_session, streaming_arguments


def main() -> None:
    parser = streaming_arguments(__doc__ or "", topic="text")
    parser.add_argument("--sink", choices=("console", "noop"), default="console", help="where the counts go")
    args = parser.parse_args()
    spark = start_session("word-count", args, **{"spark.sql.shuffle.partitions": 2})
    lines = read_stream(spark, args).select(col("value").cast("string").alias("line"))
    words = lines.select(explode(split("line", r"\s+")).alias("word")).filter("word != ''")
    counts = words.groupBy("word").count()
    counts_out = counts.writeStream.queryName("word-count").format(args.sink).outputMode("update")
    run(counts_out.option("numRows", 100), args)  # the console shows 20 rows else


if __name__ == "__main__":
    main()
