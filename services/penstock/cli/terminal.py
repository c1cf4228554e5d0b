"""What commands share at the terminal: tables, JSON, sizes in words, and how they fail.

A command that can't do its work raises CommandFailed (or calls `fail`); the user sees one line that says
what to do, and the exit code. Nothing here may be slow to import: `penstock --help` comes through.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

Result = TypeVar("Result")


class CommandFailed(Exception):
    """One line for the user: what is wrong, and what to do."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def fail(message: str, code: int = 1) -> NoReturn:
    raise CommandFailed(message, code)


class Commands(TyperGroup):
    """The root of all commands; turns whatever goes wrong below into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.TyperException, typer.Exit, typer.Abort):
            raise
        except CommandFailed as error:
            self._end(ctx, str(error), error.code)
        except BrokenPipeError:
            # The reader of our output (`| head`) has had enough; Python must not complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception as error:
            if "PENSTOCK_DEBUG" in os.environ:
                raise
            text = str(error) or type(error).__name__
            self._end(ctx, f"{text} (PENSTOCK_DEBUG=1 shows where)", 1)

    def _end(self, ctx: typer.Context, message: str, code: int) -> NoReturn:
        typer.echo(f"penstock {ctx.invoked_subcommand or ''}: {message}".replace(" :", ":"), err=True)
        raise typer.Exit(code) from None


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a client command; its libraries' own log lines would only repeat the error."""
    import uvloop

    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    try:
        return uvloop.run(work)
    except asyncio.CancelledError:
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Numbers to the right, text to the left; never cut when it goes to a file or a pipe."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    if title:
        typer.echo(title)  # not the table's own, which would be wrapped to its width
    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[at], int | float) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    Console(width=None if sys.stdout.isatty() else 240).print(table)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def in_bytes(count: float) -> str:
    """4096 as 4.0 KiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
