"""Options that many commands have."""

from __future__ import annotations

from typing import Annotated

import typer

BrokerAddress = Annotated[
    str,
    typer.Option(
        "--broker", "-b", envvar="PENSTOCK_BROKER", metavar="HOST:PORT", help="A broker of the cluster."
    ),
]
HttpAddress = Annotated[
    str,
    typer.Option("--http", envvar="PENSTOCK_HTTP", metavar="HOST:PORT", help="A broker's HTTP address."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

BROKER = "127.0.0.1:9092"
HTTP = "127.0.0.1:9644"
