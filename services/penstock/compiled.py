"""Which modules `make compile` turns into C extensions (mypyc, from the same source), and which to load.

An extension lies beside its source and would be imported instead of it, however old it is. So the build
leaves a note of the sources it was made from (`built.json`), and `penstock/__init__.py` asks here before
anything else is imported: unless every source still reads as it did, or with PENSTOCK_PURE=1, the sources
are taken. The result is the same either way, only slower.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final
from zlib import crc32

MODULES: Final = (
    "penstock.wire.varint",
    "penstock.wire.head",
    "penstock.wire.batch",
    "penstock.wire.records",
    "penstock.wire.produce",
    "penstock.wire.wakeup",
    "penstock.shm.memory",
    "penstock.log.index",
    "penstock.log.producers",
    "penstock.log.segment",
    "penstock.log.partition",
    "penstock.broker.reply",
    "penstock.broker.stats",
    "penstock.broker.buffers",
    "penstock.broker.catalog",
    "penstock.broker.connection",
    "penstock.broker.dispatch",
    "penstock.broker.produce",
    "penstock.replication.frames",
    "penstock.replication.channel",
    "penstock.replication.leadership",
    "penstock.replication.following",
    "penstock.replication.replica",
    "penstock.replication.link",
)
NOTE: Final = "built.json"
_ROOT: Final = Path(__file__).parent


def source(module: str) -> Path:
    return _ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py")


def fingerprints() -> dict[str, int]:
    """Of the sources as they are now. By content: installing a wheel changes every file's time."""
    return {module: crc32(source(module).read_bytes()) for module in MODULES}


def usable() -> bool:
    """Whether there are extensions for this interpreter, made from these very sources."""
    note = _ROOT / NOTE
    if os.environ.get("PENSTOCK_PURE") == "1" or not note.exists():
        return False
    if not source(MODULES[0]).with_suffix(EXTENSION_SUFFIXES[0]).exists():
        return False
    noted: object = json.loads(note.read_text())
    return noted == fingerprints()


class _FromSource:
    """Finds the modules' sources before anybody finds an extension."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_file_location(name, source(name)) if name in MODULES else None


def choose() -> bool:
    """True if the extensions are taken from here on."""
    if usable():
        return True
    sys.meta_path.insert(0, _FromSource)
    return False
