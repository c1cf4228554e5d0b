"""Compaction keeps the last value of each key, and nothing that must stay is lost."""

from __future__ import annotations

import asyncio
import itertools
import os

import pytest
from log_rig import NOW, LogRig, everything, put, take

from penstock.log import compaction, seek
from penstock.log.compaction import compact, wants_compaction
from penstock.wire import batch

CONFIG = {"cleanup.policy": "compact", "segment.bytes": "65536", "min.cleanable.dirty.ratio": "0.1"}


async def clean(rig: LogRig, log: object) -> None:
    log.roll()
    await rig.store.write_behind.durable()
    assert wants_compaction(log, rig.clock.now)
    await compact(log, rig.store.write_behind, rig.clock.now)


async def test_the_last_value_of_each_key_stays_at_its_offset(rig: LogRig) -> None:
    (log,) = rig.open(CONFIG)
    for at in range(1000):
        put(log, [b"v%d" % at * 20], keys=[b"k%d" % (at % 10)])
    await clean(rig, log)
    records = everything(log)
    assert [(record.key, record.offset) for record in records] == [
        (b"k%d" % (at % 10), at) for at in range(990, 1000)
    ]
    put(log, [b"new"], keys=[b"k3"])
    assert everything(log)[-1].offset == 1000
    await rig.store.stop()


async def test_only_committed_sealed_segments_are_cleaned(rig: LogRig) -> None:
    """R7: a newer value that is not committed must not remove an older one."""
    (log,) = rig.open(CONFIG)
    put(log, [b"old"], keys=[b"k"])
    log.roll()
    log.replicated = True  # from here on nothing is committed
    put(log, [b"uncommitted"], keys=[b"k"])
    log.roll()
    await rig.store.write_behind.durable()
    await compact(log, rig.store.write_behind, rig.clock.now)
    assert [record.value for record in everything(log)] == [b"old"]
    await rig.store.stop()


async def test_cleaned_above_the_watermark_a_committed_value_is_lost_r7(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7, a test of the test: without the rule the schedule above does its harm and is noticed."""
    monkeypatch.setattr(compaction, "_cleanable", lambda partition, now: partition.segments[:-1])
    with pytest.raises(AssertionError, match="old"):
        await test_only_committed_sealed_segments_are_cleaned(rig)
    await rig.store.stop()


async def test_a_tombstone_stays_until_its_retention_is_over(rig: LogRig) -> None:
    (log,) = rig.open({**CONFIG, "delete.retention.ms": "1000"})
    put(log, [b"v"], keys=[b"gone"])
    put(log, [b"v"], keys=[b"stays"])
    put(log, [None], keys=[b"gone"])  # type: ignore[list-item]
    await clean(rig, log)
    assert [(r.key, r.value) for r in everything(log)] == [(b"stays", b"v"), (b"gone", None)]
    rig.clock.now = NOW + 5000
    put(log, [b"w"], keys=[b"other"])
    await clean(rig, log)
    assert [(r.key, r.value) for r in everything(log)] == [(b"stays", b"v"), (b"other", b"w")]
    await rig.store.stop()


async def test_a_producers_last_sequence_survives_compaction_and_a_crash(rig: LogRig) -> None:
    """R5: the cleaner keeps each producer's last batch header."""
    (log,) = rig.open(CONFIG)
    put(log, [b"v"], keys=[b"k"], producer=(9, 0, 0))
    put(log, [b"w"], keys=[b"k"], producer=(9, 0, 1))
    put(log, [b"x"], keys=[b"k"], producer=(10, 0, 0))
    await clean(rig, log)
    for path in log.disk_directory.glob("*.producers"):
        path.unlink()  # rebuilt from the log alone
    await rig.crash()
    rig.lose_memory()
    (log,) = rig.open(CONFIG)
    assert put(log, [b"w"], keys=[b"k"], producer=(9, 0, 1)).duplicate
    assert [record.value for record in everything(log)] == [b"x"]
    await rig.store.stop()


async def test_a_crash_right_after_cleaning_brings_back_the_cleaned_segments(rig: LogRig) -> None:
    (log,) = rig.open(CONFIG)
    for at in range(500):
        put(log, [b"v%d" % at * 20], keys=[b"k%d" % (at % 7)])
    await clean(rig, log)
    before = everything(log)
    await rig.crash()
    (log,) = rig.open(CONFIG)
    assert everything(log) == before
    await rig.store.stop()


async def test_memory_that_a_crash_left_from_before_the_cleaning_is_not_taken_back(rig: LogRig) -> None:
    """The cleaned files are in place, the process dies before it lets go of the old segments' memory."""
    (log,) = rig.open(CONFIG)
    for at in range(500):
        put(log, [b"v%d" % at * 20], keys=[b"k%d" % (at % 7)])
    log.roll()
    await rig.store.write_behind.durable()  # nothing else is cleaned
    old = {path: path.read_bytes() for path in log.memory_directory.glob("*.seg")}
    await clean(rig, log)
    before = everything(log)
    await rig.crash()
    for path, content in old.items():
        if not path.exists():
            path.write_bytes(content)
    (log,) = rig.open(CONFIG)
    assert everything(log) == before
    await rig.store.stop()


async def test_who_still_has_the_old_segment_finds_what_is_left_in_the_new_file(rig: LogRig) -> None:
    """A fetch that began before the file was swapped: the places it knows are those of the old one."""
    (log,) = rig.open(CONFIG)
    for at in range(200):
        put(log, [b"v" * 600], keys=[b"%03d" % at], timestamp=NOW + at)
    await clean(rig, log)
    for at in range(0, 200, 2):
        put(log, [b"w" * 600], keys=[b"%03d" % at], timestamp=NOW + 1000)
    old = log.segments[1]
    await clean(rig, log)
    assert old not in log.segments
    last = old.next_offset - 1
    for offset in range(old.base_offset, old.next_offset):
        cached = old.read_cached(offset, 1, old.committed)
        assert not cached or batch.read_place(cached, 0)[0] == min(offset | 1, last)
        base, _ = batch.read_place(old.read_cold(offset, 1, old.committed), 0)
        assert base == min(offset | 1, last), "the odd ones are left, and a batch at the end"
        found = seek.first_at(old, seek.content(old), NOW + offset, 0)
        assert found == ((offset | 1, NOW + (offset | 1)) if offset | 1 <= last else None)
    await rig.store.stop()


async def test_a_disk_that_refuses_a_later_segment_leaves_the_log_as_its_files_are(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = rig.open(CONFIG)
    for at in range(300):
        put(log, [b"%03d" % at * 200], keys=[b"%03d" % (at % 200)])
    log.roll()
    await rig.store.write_behind.durable()
    latest = {record.key: record for record in everything(log)}
    calls = itertools.count()
    sync = os.fsync

    def refuse(descriptor: int) -> None:
        if next(calls) == 1:
            raise OSError(28, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        await compact(log, rig.store.write_behind, rig.clock.now)
    for segment in log.segments[:-1]:
        assert segment.size == segment.path.stat().st_size
        if segment.is_hot:
            log.evict(segment)
    records = everything(log)
    assert len(records) < 300, "the first one was cleaned"
    assert {record.key: record for record in records} == latest
    await rig.store.stop()


async def test_a_log_that_begins_anew_before_it_is_cleaned_is_left_alone(rig: LogRig) -> None:
    """Its first segment has the path of one that was to be cleaned, and records without a key are dropped."""
    (log,) = rig.open(CONFIG, lead=False)
    take(log, 1, 100, b"old")
    log.commit(100)
    log.roll()
    await rig.store.write_behind.durable()
    go_on = rig.hold_disk()
    round_before = asyncio.create_task(rig.store.write_behind.durable())
    await asyncio.sleep(0.1)  # it is under way: what is asked for from here on comes in the next
    cleaning = asyncio.create_task(compact(log, rig.store.write_behind, rig.clock.now))
    await asyncio.sleep(0)
    rig.store.reset(log, 0)
    take(log, 2, 50, b"new")
    log.commit(50)
    log.roll()
    go_on.set()
    await asyncio.gather(round_before, cleaning)
    await rig.store.write_behind.durable()
    for segment in log.segments[:-1]:
        if segment.is_hot:
            log.evict(segment)
    assert [record.value for record in everything(log)] == [b"new"] * 50
    await rig.store.stop()
