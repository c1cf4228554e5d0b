"""Files of deleted segments are used again, and nobody ever sees what was in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from log_rig import LogRig, everything, put

from penstock.log.spares import KEPT, SpareFiles


def test_a_dropped_file_is_used_again_and_is_empty(tmp_path: Path) -> None:
    spares = SpareFiles(tmp_path / "spare")
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"x" * 10_000)
    inode = old.stat().st_ino
    spares.drop(old, lambda: False)
    assert not old.exists()
    os.close(spares.create(new))
    assert (new.stat().st_ino, new.stat().st_size) == (inode, 0)


def test_what_somebody_has_open_keeps_its_bytes(tmp_path: Path) -> None:
    spares = SpareFiles(tmp_path / "spare")
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"theirs")
    with old.open("rb") as file:
        spares.drop(old, lambda: True)
        spares.write(new, b"ours, and longer")
        assert file.read() == b"theirs"
    assert not old.exists()


def test_who_is_late_finds_no_file(tmp_path: Path) -> None:
    """The question is asked when the file is gone: a reader that begins after a no can't have opened it."""
    spares = SpareFiles(tmp_path / "spare")
    old = tmp_path / "old"
    old.write_bytes(b"x")

    def is_read() -> bool:
        assert not old.exists()
        return False

    spares.drop(old, is_read)


def test_a_small_file_that_the_disk_refuses_leaves_nothing(tmp_path: Path) -> None:
    spares = SpareFiles(tmp_path / "spare")
    with pytest.raises(OSError, match="No such file"):
        spares.write(tmp_path / "no such directory" / "new", b"x")
    assert not list((tmp_path / "spare").iterdir())


def test_spares_are_bounded_and_used_after_the_next_start(tmp_path: Path) -> None:
    spares = SpareFiles(tmp_path / "spare")
    for at in range(KEPT + 10):
        path = tmp_path / str(at)
        path.write_bytes(b"x")
        spares.drop(path, lambda: False)
    assert len(list((tmp_path / "spare").iterdir())) == KEPT
    (tmp_path / "spare" / "0").write_bytes(b"not emptied before the crash")
    again = SpareFiles(tmp_path / "spare")
    inodes = {path.stat().st_ino for path in (tmp_path / "spare").iterdir()}
    assert len(inodes) == KEPT
    old, new = tmp_path / "old", tmp_path / "new"
    again.write(new, b"new")
    assert new.stat().st_ino in inodes
    old.write_bytes(b"old")
    again.drop(old, lambda: False)
    assert len(list((tmp_path / "spare").iterdir())) == KEPT


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[LogRig]:
    made = LogRig(tmp_path / "disk")
    yield made
    made.close()


async def test_a_log_in_used_files_is_read_back_from_disk_as_it_was(rig: LogRig) -> None:
    """Partitions of one shape: what was left of one would go on exactly where the other ends."""
    first, second = rig.open({"segment.bytes": "65536"}, partitions=2)
    for at in range(200):
        put(first, [b"%06d" % at * 200])
    await rig.store.write_behind.durable()
    await rig.store.delete_records(first, first.log_end)
    assert list((rig.directory / "spare").iterdir())
    for at in range(90):
        put(second, [b"%06d" % -at * 200])
    await rig.store.write_behind.durable()
    wanted = everything(second)
    await rig.crash()
    rig.lose_memory()
    first, second = rig.open({"segment.bytes": "65536"}, partitions=2)
    assert everything(second) == wanted
    assert everything(first) == []
    await rig.store.stop()


async def test_files_that_were_read_are_not_used_again(rig: LogRig) -> None:
    (log,) = rig.open({"segment.bytes": "65536"})
    for at in range(200):
        put(log, [b"%06d" % at * 200])
    await rig.store.write_behind.durable()
    oldest = log.segments[0]
    assert oldest.read_cold(0, 1, oldest.size)
    await rig.store.delete_records(log, oldest.next_offset)
    assert not list((rig.directory / "spare").iterdir())
    await rig.store.stop()
