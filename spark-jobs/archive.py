"""Keeps a topic in files: every record exactly once, whatever dies meanwhile. Files are Spark's own, so read
them with Spark, which knows which of them count: spark.read.json(output)."""

from __future__ import annotations

from penstock.spark.job import read_stream, run, start_session, streaming_arguments


def main() -> None:
    parser = streaming_arguments(__doc__ or "")
    parser.add_argument("--output", default="archive", help="the folder to write")
    parser.add_argument("--format", choices=("json", "parquet"), default="json", help="of the files")
    args = parser.parse_args()
    spark = start_session("archive", args)
    records = read_stream(spark, args).selectExpr(
        "partition", "offset", "timestamp", "cast(key as string) as key", "cast(value as string) as value"
    )
    writer = records.writeStream.queryName("archive").format(args.format).option("path", args.output)
    run(writer.outputMode("append"), args)


if __name__ == "__main__":
    main()
