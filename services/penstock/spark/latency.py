"""How old records are when a query is done with them, observed on their way through it.

`observe_latency` puts the observation into a query, `latencies` takes it out of the query's progress. It
reads the timestamp of every record, which a query that only counts would not do otherwise.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAME: Final = "penstock_latency"
QUANTILES: Final = ("0.5", "0.99", "1")
_AGE: Final = "penstock_age"
_CLOCK: Final = "cast(java_method('java.lang.System', 'currentTimeMillis') as bigint)"


def observe_latency(records: DataFrame, *, real_time: bool = False) -> DataFrame:
    """The same records; the query's progress then tells their latency.

    In real time a record has arrived when its task has it; in a micro-batch when the batch is done, so
    there the timestamps are observed: the oldest hundredth of them is the latency's p99.
    """
    from pyspark.sql.functions import expr

    if real_time:
        # Told by a clock that is asked for every record, which may not stand inside an observation.
        aged = records.withColumn(_AGE, expr(f"{_CLOCK} - unix_millis(timestamp)"))
        ages = f"percentile_approx({_AGE}, array(0.5, 0.99, 1.0), 1000)"
        return aged.observe(NAME, expr(ages).alias("ages")).drop(_AGE)
    times = "percentile_approx(unix_millis(timestamp), array(0.5, 0.01, 0.0), 1000)"
    return records.observe(NAME, expr(times).alias("times"))


def latencies(progress: Any) -> dict[str, float]:
    """Seconds by quantile; empty for a query, or a batch, without the observation."""
    observed = progress.observedMetrics.get(NAME)
    if observed is None:
        return {}
    ((kind, millis),) = observed.asDict().items()
    if not millis:
        return {}
    if kind == "times":
        began = datetime.fromisoformat(progress.timestamp).timestamp() * 1000
        ended = began + progress.durationMs["triggerExecution"]
        millis = [ended - time for time in millis]
    return {quantile: age / 1000 for quantile, age in zip(QUANTILES, millis, strict=True)}
