"""Rule S8: a reader is alive while it holds the lock on its cursor file, and not a moment longer."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import eventually
from penstock.shm import layout
from penstock.shm.cursors import ReaderRegistry

TOPIC_ID = bytes(range(16))
_READER = """
import sys
from pathlib import Path
from penstock.shm.cursors import CursorFile
cursor = CursorFile(Path(sys.argv[1]), "child", 4)
cursor.take_slot(bytes(range(16)), 3, 100).pin(64)
print("ready", flush=True)
sys.stdin.read()
cursor.close()
"""


@pytest.fixture
def registry(tmp_path: Path) -> ReaderRegistry:
    return ReaderRegistry(tmp_path)


@contextlib.contextmanager
def _reader(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A reader in a process of its own, with a segment pinned."""
    process = subprocess.Popen(
        [sys.executable, "-c", _READER, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def child(tmp_path: Path, registry: ReaderRegistry) -> Iterator[subprocess.Popen[str]]:
    with _reader(tmp_path) as process:
        yield process


def _cursors(directory: Path) -> list[Path]:
    return list((directory / layout.CURSOR_DIR).iterdir())


def test_s8_a_killed_reader_is_removed_and_its_pin_is_freed(
    tmp_path: Path, registry: ReaderRegistry, child: subprocess.Popen[str]
) -> None:
    for _ in range(3):
        registry.refresh()
        assert registry.pins() == {(TOPIC_ID, 3, 64)}
    child.send_signal(signal.SIGSTOP)  # neither a pid nor a clock says that this one lives
    registry.refresh()
    assert len(registry) == 1
    child.kill()
    child.wait()
    registry.refresh()
    assert registry.pins() == set()
    assert len(registry) == 0
    assert _cursors(tmp_path) == []


def test_s8_a_reader_that_leaves_takes_its_file_with_it(
    tmp_path: Path, registry: ReaderRegistry, child: subprocess.Popen[str]
) -> None:
    registry.refresh()
    (slot,) = registry.slots()
    assert (slot.label, slot.partition, slot.finished) == ("child", 3, 100)
    child.communicate()
    eventually(lambda: _cursors(tmp_path) == [])
    registry.refresh()
    assert len(registry) == 0


def test_s3_the_pin_of_a_reader_that_nobody_knows_yet_counts(
    registry: ReaderRegistry, child: subprocess.Popen[str]
) -> None:
    assert registry.pins() == {(TOPIC_ID, 3, 64)}


def test_a_restarted_broker_sees_readers_that_were_there_before(
    tmp_path: Path, child: subprocess.Popen[str]
) -> None:
    assert ReaderRegistry(tmp_path).pins() == {(TOPIC_ID, 3, 64)}


@pytest.mark.timeout(10)
def test_whatever_lies_among_the_cursors_does_no_harm(
    tmp_path: Path, registry: ReaderRegistry, child: subprocess.Popen[str]
) -> None:
    directory = tmp_path / layout.CURSOR_DIR
    (directory / "empty.cur").touch()
    (directory / "short.cur").write_bytes(b"PSTKCURS")
    (directory / "other.cur").write_bytes(b"x" * 4096)
    (directory / "many.cur").write_bytes(layout.CURSOR_MAGIC + b"\xff" * 4096)
    (directory / "folder.cur").mkdir()
    os.mkfifo(directory / "pipe.cur")
    registry.refresh()
    assert registry.pins() == {(TOPIC_ID, 3, 64)}


def test_a_reader_that_shrinks_its_file_harms_itself_only(
    tmp_path: Path, registry: ReaderRegistry, child: subprocess.Popen[str]
) -> None:
    registry.refresh()
    (path,) = _cursors(tmp_path)
    os.truncate(path, 10)
    assert registry.pins() == set()


def test_a_reader_writes_only_where_the_cursors_are(tmp_path: Path) -> None:
    log, cursors = tmp_path / "log", tmp_path / "cursors"
    log.mkdir()
    ReaderRegistry(log)  # an earlier life, with the cursors inside
    registry = ReaderRegistry(log, cursors)
    with _reader(log) as process:
        registry.refresh()
        assert registry.pins() == {(TOPIC_ID, 3, 64)}
        assert len(list(cursors.iterdir())) == 1
        assert [path.name for path in log.iterdir()] == [layout.CURSOR_DIR]
        assert process.poll() is None
    registry.refresh()
    assert len(registry) == 0
    ReaderRegistry(log)
    assert not (log / layout.CURSOR_DIR).is_symlink()


def test_a_cursor_directory_that_was_taken_away_holds_up_nobody(
    tmp_path: Path, registry: ReaderRegistry, child: subprocess.Popen[str]
) -> None:
    registry.refresh()
    shutil.rmtree(tmp_path / layout.CURSOR_DIR)
    registry.refresh()
    assert (len(registry), registry.pins()) == (0, set())
