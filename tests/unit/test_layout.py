"""The shared-memory layout is written down twice, in Python and in Java: neither may change alone."""

from __future__ import annotations

import re
from enum import IntEnum
from pathlib import Path

import pytest

from penstock.shm import layout

JAVA = Path(__file__).parents[2] / "spark-jobs/connector/src/main/java/io/penstock/shm/Layout.java"
DECLARATION = re.compile(r"static final (int|String) ([A-Z_]+) = (?:(\d+)|\"([^\"]*)\");")


def java_constants() -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for kind, name, number, text in DECLARATION.findall(JAVA.read_text()):
        found[name] = int(number) if kind == "int" else text
    return found


def python_constants() -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for name, value in vars(layout).items():
        if name.isupper() and isinstance(value, int | str | bytes):
            found[name] = value.decode() if isinstance(value, bytes) else value
    for prefix, states in (("PARTITION_STATE", layout.PartitionState), ("SLOT_STATE", layout.SlotState)):
        found |= {f"{prefix}_{state.name}": state.value for state in states}
    return found


def test_both_sides_name_the_same_constants() -> None:
    assert java_constants().keys() == python_constants().keys()


@pytest.mark.parametrize("name", sorted(python_constants()))
def test_both_sides_agree_on(name: str) -> None:
    assert java_constants()[name] == python_constants()[name]


def test_every_word_is_aligned_and_inside_its_block() -> None:
    blocks = {
        "NODE_": layout.NODE_SIZE,
        "PART_": layout.PART_SIZE,
        "SEGMENT_": layout.SEGMENT_HEADER,
        "CURSOR_": layout.CURSOR_HEADER,
        "SLOT_": layout.CURSOR_SLOT_SIZE,
    }
    sizes = {
        "NODE_SIZE",
        "PART_SIZE",
        "SEGMENT_HEADER",
        "CURSOR_HEADER",
        "CURSOR_SLOT_SIZE",
        "CURSOR_LABEL_SIZE",
    }
    for name, value in vars(layout).items():
        for prefix, size in blocks.items():
            is_offset = name.startswith(prefix) and name not in sizes and name != "CURSOR_DEFAULT_SLOTS"
            if is_offset and isinstance(value, int) and not isinstance(value, IntEnum):
                assert value % layout.WORD == 0, name
                assert value + layout.WORD <= size, name
