"""`penstock spark`: what a Spark that was not started by `penstock.spark.session` needs to know."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer

from penstock.cli.terminal import fail

app = typer.Typer(
    no_args_is_help=True, help="Spark's side: where the connector is, whether workers are there."
)

_LOOK_EVERY: Final = 0.5


@app.callback()
def spark() -> None:
    """Spark's side: the connector, the workers."""


@app.command()
def wait(
    master: Annotated[str, typer.Argument(help="The web address of a standalone master, http://HOST:8080.")],
    workers: Annotated[int, typer.Option(min=1, help="How many it should have.")] = 1,
    seconds: Annotated[float, typer.Option(min=0, help="How long to wait for them.")] = 60,
) -> None:
    """Wait until a standalone master has its workers; then, or when the time is up, say how many it has.

    A program that starts earlier has all its executors on the workers that are there, and reads by pull
    what the others' memory holds.

    Example: penstock spark wait http://spark-master:8080 --workers 2 && spark-submit ...
    """
    deadline = time.monotonic() + seconds
    while (found := _workers(master)) < workers and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY)
    typer.echo(f"{found} of {workers} workers are there")


def _workers(master: str) -> int:
    """Those alive; none while the master can't be asked."""
    import json
    import urllib.request

    try:
        with urllib.request.urlopen(f"{master.rstrip('/')}/json/", timeout=2) as answer:
            return int(json.load(answer)["aliveworkers"])
    except OSError:
        return 0


@app.command()
def jar(
    with_kafka: Annotated[
        bool, typer.Option("--with-kafka", help="Also those of Spark's own Kafka source, fetched by Maven.")
    ] = False,
) -> None:
    """Print the path of the connector's jar, built first if its sources are newer.

    Example: spark-submit --jars "$(penstock spark jar)" job.py
    """
    from penstock.spark import jar_path
    from penstock.spark.build import BuildError
    from penstock.spark.kafka_source import KafkaJarsMissing, kafka_jars

    try:
        jars = [jar_path(), *(kafka_jars() if with_kafka else ())]
    except (BuildError, KafkaJarsMissing) as error:
        fail(str(error))
    typer.echo(",".join(map(str, jars)))
