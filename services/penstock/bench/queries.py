"""What is asked of a stream of records, for every experiment with Spark in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from penstock.load.content import campaign_of_ad

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_WORDS: Final = "explode(split(cast(value as string), ' ')) as word"
_WINDOW: Final = "window(timestamp, '5 seconds', '1 second') as window"
_LATENESS: Final = "10 seconds"
_EVENT: Final = "ad_id string, event_type string"
_NOW_MS: Final = "reflect('java.lang.System', 'currentTimeMillis')"
"""Evaluated for each row, by the task that writes it."""


def _windowed_word_count(rows: DataFrame) -> DataFrame:
    words = rows.withWatermark("timestamp", _LATENESS).selectExpr("timestamp", _WORDS)
    return words.selectExpr(_WINDOW, "word").groupBy("window", "word").count()


def ad_counts(rows: DataFrame) -> DataFrame:
    """Yahoo's streaming benchmark: views of ads, joined with their campaigns, counted in windows of 10 s.

    The value that comes out is the time of the newest event in a count, and the time at which the task that
    writes it had it, both in milliseconds.
    """
    from pyspark.sql.functions import broadcast

    table = ", ".join(f"('{ad}', {campaign})" for ad, campaign in campaign_of_ad().items())
    campaigns = rows.sparkSession.sql(f"select * from values {table} as ads(ad_id, campaign)")
    events = rows.selectExpr("timestamp", f"from_json(cast(value as string), '{_EVENT}') as event")
    views = events.where("event.event_type = 'view'").selectExpr("timestamp", "event.ad_id as ad_id")
    joined = views.withWatermark("timestamp", _LATENESS).join(broadcast(campaigns), "ad_id")
    counts = joined.selectExpr("window(timestamp, '10 seconds') as window", "campaign", "timestamp")
    counts = counts.groupBy("window", "campaign").agg({"timestamp": "max", "*": "count"})
    key = "concat(campaign, ' ', unix_millis(window.start), ' ', `count(1)`) as key"
    return counts.selectExpr(key, f"concat(unix_millis(`max(timestamp)`), ',', {_NOW_MS}) as value")


AD_COUNTS: Final = "ad-counts"
QUERIES: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    "count": lambda rows: rows.groupBy().count(),
    "filter": lambda rows: rows.filter("cast(value as string) like '%penstock%'").select("value"),
    "pass": lambda rows: rows.select("value"),
    "word-count": lambda rows: rows.selectExpr(_WORDS).groupBy("word").count(),
    "windowed-word-count": _windowed_word_count,
}
AGGREGATES: Final = ("count", "word-count", "windowed-word-count", AD_COUNTS)
"""Those that keep state in a stream."""
