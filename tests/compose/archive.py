"""What Spark's file sink has committed, read without Spark: files that its log doesn't name don't count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple


class Kept(NamedTuple):
    partition: int
    offset: int
    value: str


def read(folder: Path) -> list[Kept]:
    return [
        Kept(record["partition"], record["offset"], record["value"])
        for name in _committed(folder / "_spark_metadata")
        for record in map(json.loads, (folder / name).read_text().splitlines())
    ]


def _committed(log: Path) -> list[str]:
    """Names of files: from the newest batch that sums up all before it, and the batches since."""
    batches = {int(path.name.split(".")[0]): path for path in log.iterdir() if path.name[0].isdigit()}
    first = max((number for number, path in batches.items() if path.suffix == ".compact"), default=0)
    names = []
    for number in sorted(number for number in batches if number >= first):
        _version, *entries = batches[number].read_text().splitlines()
        names += [json.loads(entry)["path"].rpartition("/")[2] for entry in entries]
    return names
