"""The `penstock` command: a registry. Each command is a module, which imports what it needs when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import (
    bench,
    broker,
    cluster,
    config,
    consume,
    demo,
    group,
    inspect,
    load,
    node,
    produce,
    spark,
    status,
    topic,
)
from penstock.cli.terminal import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(broker.broker)
app.command()(node.node)
app.command()(config.config)
app.add_typer(cluster.app, name="cluster")
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.command()(produce.produce)
app.command()(consume.consume)
app.command()(load.load)
app.command()(demo.demo)
app.command()(status.status)
app.command()(inspect.inspect)
app.add_typer(bench.app, name="bench")
app.add_typer(spark.app, name="spark")


def _show_version(wanted: bool) -> None:
    if wanted:
        from penstock import __version__

        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Say which this is.")
    ] = False,
) -> None:
    """Penstock: a Kafka-compatible streaming store that keeps its log in shared memory next to Spark."""


if __name__ == "__main__":
    app()
