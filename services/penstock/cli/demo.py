"""`penstock demo`: see it all work on this machine."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    seconds: Annotated[float, typer.Option(help="How long each mode streams.", min=3)] = 20,
    rate: Annotated[int, typer.Option(help="Records per second that are produced.", min=1000)] = 100_000,
) -> None:
    """Brokers, a producer and a PySpark job that reads by push and by pull, in turns; live figures; a check.

    Two brokers, each the other's backup, if etcd is installed; a single one if not.

    Everything runs on this machine in temporary directories and is gone afterwards. The exit code is 1 if
    a record was lost, repeated or out of order.

    Example: penstock demo --seconds 10 --rate 200000
    """
    from rich.console import Console

    from penstock.demo.run import Demo, DemoFailed

    try:
        console = Console()
        console.width = max(console.width, 100)
        Demo(seconds, rate, console).run()
    except DemoFailed as problem:
        typer.echo(f"penstock demo: {problem}", err=True)
        raise typer.Exit(1) from None
