"""PySpark with Penstock: a session that has the connector on its class path.

    from penstock.spark import session

    spark = session("my app")
    spark.readStream.format("penstock").option("penstock.bootstrap.servers", "localhost:9092")...

Called by users' programs and by the jobs in spark-jobs/. Everything else is plain PySpark.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

CONFS: Final[dict[str, str]] = {
    # Real-time mode knows Spark's own sources and sinks by name; this one is not among them.
    "spark.sql.streaming.realTimeMode.allowlistCheck": "false",
    "spark.sql.streaming.realTimeMode.asyncProgressTrackingByDefault.enabled": "false",
    # What a shuffle of real-time records waits for company; read once, when Spark starts.
    "spark.shuffle.streaming.networkBufferMaxWaitTimeMs": "1",
    # So that a query can move between micro-batch and real time on one checkpoint.
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
    # A task waits this long for the node that holds its partition's memory, then runs anywhere.
    "spark.locality.wait": "300ms",
}
_JSON_LOG: Final = "-Dlog4j2.configurationFile=classpath:org/apache/spark/log4j2-json-layout.properties"
"""spark.log.structuredLogging.enabled, Spark's own way, does nothing for a driver that Python started."""


def jar_path() -> Path:
    """The connector's jar, for `spark-submit --jars`; built first where the sources are newer."""
    from penstock.spark.build import build

    return build()


def session(app_name: str = "penstock", master: str | None = None, **confs: Any) -> SparkSession:
    """A SparkSession with the connector and the settings for real-time mode.

    Confs override ours; write the dots as they are: `session("app", **{"spark.sql.shuffle.partitions": 4})`.
    Under spark-submit its master stands; otherwise it is local[*] unless one is given.
    With PENSTOCK_LOG_JSON=true, as for brokers, the driver logs JSON, one object per line.
    """
    from pyspark.sql import SparkSession

    # Python workers must be this Python, or they lack this very package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    jar = str(jar_path())
    settings = {**CONFS, **{name: _text(value) for name, value in confs.items()}}
    jars = [*filter(None, settings.get("spark.jars", "").split(",")), jar]
    settings["spark.jars"] = ",".join(jars)
    if os.environ.get("PENSTOCK_LOG_JSON", "").lower() in ("1", "true"):
        own = settings.get("spark.driver.extraJavaOptions", "")
        settings["spark.driver.extraJavaOptions"] = f"{own} {_JSON_LOG}".strip()
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
