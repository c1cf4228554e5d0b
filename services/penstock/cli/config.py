"""`penstock config`: the settings in force and where each comes from."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.options import AsJson
from penstock.cli.terminal import fail, in_bytes, print_json, print_table

_SIZES = {"memory", "request_memory", "max_request", "max_fetch"}


def config(
    file: Annotated[
        Path | None,
        typer.Option("--config", envvar="PENSTOCK_CONFIG", metavar="FILE", help="A TOML file with settings."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a broker started here would use, and where each value comes from.

    A command line option of `penstock broker` goes before the environment, that before the file, that
    before the default. Names in the file are those shown here; the variable of `data-dir` is
    PENSTOCK_DATA_DIR.

    Example: PENSTOCK_MEMORY=2GiB penstock config --config penstock.toml
    """
    from penstock.settings import Settings, SettingsError, load

    try:
        settings, sources = load({}, os.environ, file)
    except SettingsError as error:
        fail(str(error), code=2)
    values = settings.model_dump(mode="json")
    if as_json:
        print_json({name: {"value": values[name], "source": sources[name]} for name in values})
        return
    rows = []
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value)
        shown = in_bytes(value) if name in _SIZES else "-" if value is None else text
        meaning = Settings.model_fields[name].description
        rows.append((name.replace("_", "-"), shown, sources[name], meaning))
    print_table("", ("setting", "value", "from", "what it is"), rows)
