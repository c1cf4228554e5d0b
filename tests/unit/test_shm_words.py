"""Rules S1 and S4: words are stored whole, files are made whole."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import eventually
from penstock.shm import files, layout
from penstock.shm.control import LayoutMismatch, NodeControl, PartitionControl
from penstock.shm.memory import SegmentMemory

# Every byte of both is different and none is zero: half of a store shows, and so does a cleared word.
ONE, OTHER = 0x0101010101010101, 0x0202020202020202
TOPIC_ID = bytes(16)


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A directory in shared memory."""
    with tempfile.TemporaryDirectory(prefix="penstock-test-", dir="/dev/shm") as name:
        yield Path(name)


_WRITER = """
import struct, sys
from pathlib import Path
from penstock.shm import files, layout
from penstock.shm.control import PartitionControl
from penstock.shm.cursors import CursorFile
from penstock.shm.memory import SegmentMemory

directory = Path(sys.argv[1])
values = (0x0101010101010101, 0x0202020202020202)
"""
# Everything that another process reads, stored again and again by the code that stores it.
_STORE = """
control = PartitionControl.open(directory, writable=True)
segment = SegmentMemory.open(directory / layout.segment_name(0))
slot = CursorFile(directory, "test", 1).take_slot(bytes(16), 0, 0)
while True:
    for value in values:
        control.words[PartitionControl.COMMIT] = value
        control.log_start = value
        segment.seal(value)
        slot.pin(value)
"""
_PACK = """
mapping = files.open_existing(directory / layout.PART_FILE, writable=True)
while True:
    for value in values:
        struct.pack_into("<q", mapping, layout.PART_COMMIT, value)
"""


@contextlib.contextmanager
def _writing(directory: Path, program: str) -> Iterator[None]:
    """Another process that stores two values in turn, without end."""
    process = subprocess.Popen([sys.executable, "-c", _WRITER + program, str(directory)])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _wrong_loads(words: memoryview, index: int, count: int) -> int:
    """How many of `count` loads saw neither of the two values."""
    good = (ONE, OTHER)
    return sum(1 for _ in range(count) if words[index] not in good)


def _prepare(directory: Path) -> None:
    PartitionControl.create(directory, TOPIC_ID, 0)
    path = directory / layout.segment_name(0)
    SegmentMemory.create(path, 4096).assign(path, TOPIC_ID, 0, 0)
    (directory / layout.CURSOR_DIR).mkdir()


def test_s1_another_process_never_sees_half_a_word(shared: Path) -> None:
    _prepare(shared)
    control = PartitionControl.open(shared).words
    segment = SegmentMemory.open(shared / layout.segment_name(0)).words
    pinned = (layout.CURSOR_HEADER + layout.SLOT_PINNED) // layout.WORD
    with _writing(shared, _STORE):
        eventually(lambda: segment[layout.SEGMENT_NEXT // layout.WORD] > 0)
        (path,) = (shared / layout.CURSOR_DIR).glob("*.cur")
        slot = files.words_of(files.open_existing(path, writable=False))
        eventually(lambda: slot[pinned] > 0)
        for words, index in (
            (control, PartitionControl.COMMIT),
            (control, layout.PART_LOG_START // layout.WORD),
            (segment, layout.SEGMENT_NEXT // layout.WORD),
            (slot, pinned),
        ):
            assert _wrong_loads(words, index, 1_000_000) == 0
            assert {words[index] for _ in range(1_000_000)} == {ONE, OTHER}


def test_s1_is_needed_because_packing_clears_the_word_first(shared: Path) -> None:
    """If this ever fails, the test above can't fail either."""
    _prepare(shared)
    words = PartitionControl.open(shared).words
    with _writing(shared, _PACK):
        eventually(lambda: words[PartitionControl.COMMIT] > 0)
        eventually(lambda: _wrong_loads(words, PartitionControl.COMMIT, 100_000), 20)


def test_s4_no_room_is_an_error_and_leaves_nothing(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        files.create(shared / "file", 4096)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        SegmentMemory.create(shared / layout.segment_name(0), 32 * 1024)
    assert list(shared.iterdir()) == []


def test_s4_a_file_has_its_memory_before_it_has_its_name(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 20
    rename = os.rename
    seen = []

    def look(source: Path, target: Path) -> None:
        seen.append((os.stat(source).st_blocks * 512, target.exists()))
        rename(source, target)

    monkeypatch.setattr(os, "rename", look)
    assert len(files.create(shared / "file", size)) == size
    assert seen == [(size, False)]
    assert [path.name for path in shared.iterdir()] == ["file"]


def test_s4_replacing_a_file_leaves_the_mapped_one_alone(shared: Path) -> None:
    NodeControl.create(shared, 1, 7)
    old = NodeControl.open(shared)
    NodeControl.create(shared, 1, 8)
    assert (old.incarnation, NodeControl.open(shared).incarnation) == (7, 8)


def test_what_a_killed_process_with_our_pid_left_is_no_obstacle(shared: Path) -> None:
    (shared / f".node.ctl.{os.getpid()}").write_bytes(b"half")
    NodeControl.create(shared, 1, 7)
    assert [path.name for path in shared.iterdir()] == ["node.ctl"]


def test_a_file_that_is_not_ours_is_refused(shared: Path) -> None:
    (shared / layout.NODE_FILE).write_bytes(bytes(4096))
    with pytest.raises(LayoutMismatch):
        NodeControl.open(shared)
    (shared / layout.NODE_FILE).write_bytes(layout.NODE_MAGIC + (99).to_bytes(8, "little") + bytes(4080))
    with pytest.raises(LayoutMismatch, match="version 99"):
        NodeControl.open(shared)
