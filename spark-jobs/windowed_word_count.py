"""Counts words by event time in windows of 5 seconds that slide by 1; records over 10 s late are dropped."""

from __future__ import annotations

from pyspark.sql.functions import col, explode, split, window

from penstock.spark.job import read_stream, run, start_session, streaming_arguments


def main() -> None:
    parser = streaming_arguments(__doc__ or "", topic="text")
    parser.add_argument("--window", default="5 seconds", help="length of a window")
    parser.add_argument("--slide", default="1 second", help="distance between two windows")
    parser.add_argument("--watermark", default="10 seconds", help="how late a record may be")
    parser.add_argument("--sink", choices=("console", "noop"), default="console", help="where the counts go")
    args = parser.parse_args()
    spark = start_session("windowed-word-count", args, **{"spark.sql.shuffle.partitions": 2})
    lines = read_stream(spark, args).select("timestamp", col("value").cast("string").alias("line"))
    words = lines.select("timestamp", explode(split("line", r"\s+")).alias("word")).filter("word != ''")
    counts = (
        words.withWatermark("timestamp", args.watermark)
        .groupBy(window("timestamp", args.window, args.slide), "word")
        .count()
    )
    counts_out = counts.writeStream.queryName("windowed-word-count").format(args.sink).outputMode("update")
    run(counts_out.option("numRows", 100), args)  # the console shows 20 rows else


if __name__ == "__main__":
    main()
