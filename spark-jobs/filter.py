"""Passes on the records whose value contains a word."""

from __future__ import annotations

from pyspark.sql.functions import col

from penstock.spark.job import read_stream, run, start_session, streaming_arguments


def main() -> None:
    parser = streaming_arguments(__doc__ or "")
    parser.add_argument("--word", default="error", help="what to look for")
    parser.add_argument("--sink", choices=("console", "noop"), default="console", help="where the records go")
    args = parser.parse_args()
    spark = start_session("filter", args)
    records = read_stream(spark, args)
    found = records.select("partition", "offset", col("value").cast("string").alias("value")).filter(
        col("value").contains(args.word)
    )
    run(found.writeStream.queryName("filter").format(args.sink).outputMode("append"), args)


if __name__ == "__main__":
    main()
