"""`penstock spark`: what a Spark that was not started by `penstock.spark.session` needs to know."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli.terminal import fail

app = typer.Typer(no_args_is_help=True, help="Spark's side: where the connector is.")


@app.callback()
def spark() -> None:
    """Spark's side: where the connector is."""


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
