"""What lies here, on disk and in memory, of partitions that are not open. Directories tell."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from penstock.log.state import PartitionRecord
from penstock.shm.control import LayoutMismatch, PartitionControl

PartitionKey = tuple[bytes, int]

_KEEP: Final = "keep"
"""A file that says: never delete this, however things look later. It goes when the partition is opened."""


class Leftover(NamedTuple):
    directories: tuple[Path, ...]
    size: int
    promised_epoch: int
    """The highest leader epoch that this log has ever answered to; -1 if nothing is left that says so: such
    a log would begin anew if it were opened."""
    kept: bool


def find(
    disk: Path,
    memory: Path,
    records: Mapping[PartitionKey, PartitionRecord],
    opened: Collection[PartitionKey],
) -> dict[PartitionKey, Leftover]:
    """Blocks: for a thread."""
    found: dict[PartitionKey, list[Path]] = {}
    for directory in (*disk.glob("*/*"), *memory.glob("*/*")):
        key = _key_of(directory)
        if key is not None and key not in opened:
            found.setdefault(key, []).append(directory)
    return {
        key: Leftover(
            tuple(directories),
            sum(map(_size, directories)),
            max(records[key].promised_epoch if key in records else -1, *map(_promised_epoch, directories)),
            any((directory / _KEEP).exists() for directory in directories),
        )
        for key, directories in found.items()
    }


def keep(leftover: Leftover) -> None:
    for directory in leftover.directories:
        (directory / _KEEP).touch()


def is_wanted_again(*directories: Path) -> None:
    for directory in directories:
        (directory / _KEEP).unlink(missing_ok=True)


def _key_of(directory: Path) -> PartitionKey | None:
    """On disk they are called <topic>.<topic id>/<partition>, in memory <topic id>/<partition>."""
    try:
        key = bytes.fromhex(directory.parent.name.rpartition(".")[2]), int(directory.name)
    except ValueError:
        return None
    return key if len(key[0]) == 16 else None


def _size(directory: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):  # one that is opened just now has files that come and go
        for path in directory.iterdir():
            total += path.stat().st_size
    return total


def _promised_epoch(directory: Path) -> int:
    try:
        return PartitionControl.open(directory).promised_epoch
    except (OSError, LayoutMismatch, ValueError):
        return -1
