"""`penstock spark`: what a Spark that was not started by `penstock.spark.session` needs to know."""

from __future__ import annotations

import typer

from penstock.cli.terminal import fail

app = typer.Typer(no_args_is_help=True, help="Spark's side: where the connector is.")


@app.callback()
def spark() -> None:
    """Spark's side: where the connector is."""


@app.command()
def jar() -> None:
    """Print the path of the connector's jar, built first if its sources are newer.

    Example: spark-submit --jars "$(penstock spark jar)" job.py
    """
    from penstock.spark import jar_path
    from penstock.spark.build import BuildError

    try:
        typer.echo(jar_path())
    except BuildError as error:
        fail(str(error))
