"""The `penstock` command."""

from __future__ import annotations

import typer

from penstock.cli.broker import broker

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Penstock: a stream log in shared memory.")
app.command()(broker)


@app.callback()
def main() -> None:
    """Penstock: a Kafka-compatible streaming store that keeps its log in shared memory next to Spark."""


if __name__ == "__main__":
    app()
