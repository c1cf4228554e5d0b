"""A batch over a range of time: how many records and bytes each minute had."""

from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql.functions import count, date_trunc, length, sum

from penstock.spark.job import arguments, source_options, start_session


def millis(text: str) -> str:
    moment = datetime.fromisoformat(text)
    return str(round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--since", help="first moment, as 2026-01-31T12:00 (UTC unless it says otherwise)")
    parser.add_argument("--until", help="last moment, excluded")
    args = parser.parse_args()
    spark = start_session("replay", args, **{"spark.sql.shuffle.partitions": 2})
    reader = spark.read.format(args.source).options(**source_options(args))
    if args.since:
        reader = reader.option("startingTimestamp", millis(args.since))
        reader = reader.option("startingOffsetsByTimestampStrategy", "latest")
    if args.until:
        reader = reader.option("endingTimestamp", millis(args.until))
    minutes = (
        reader.load()
        .groupBy(date_trunc("minute", "timestamp").alias("minute"))
        .agg(count("*").alias("records"), sum(length("value")).alias("bytes"))
        .orderBy("minute")
    )
    minutes.show(1000, truncate=False)


if __name__ == "__main__":
    main()
