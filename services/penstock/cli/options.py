"""Options that several commands have."""

from __future__ import annotations

from enum import StrEnum
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


class Codec(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class Acks(StrEnum):
    NONE = "0"
    LEADER = "1"
    ALL = "all"

    @property
    def number(self) -> int:
        return -1 if self is Acks.ALL else int(self.value)
