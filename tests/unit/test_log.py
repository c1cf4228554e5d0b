"""The log's promises, on one node: what was appended is read back, survives, and ages as configured."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from log_rig import NOW, LogRig, everything, put, take
from simulation import interpreted

from penstock.log import recovery, store, writebehind
from penstock.log.partition import CeilingReached, PartitionLog
from penstock.log.pool import MemoryExhausted
from penstock.log.segment import Segment
from penstock.log.state import PartitionRecord
from penstock.log.store import HEARTBEAT, PartitionPlace
from penstock.shm.memory import SegmentMemory
from penstock.wire.errors import ErrorCode, KafkaError


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  # nobody tells
        await asyncio.sleep(0.01)


def values(records: list) -> list[bytes]:
    return [record.value for record in records]


async def test_records_are_read_back_in_order_across_segments(rig: LogRig) -> None:
    (log,) = rig.open({"segment.bytes": "65536"})
    sent = [b"%06d" % at + b"x" * 500 for at in range(2000)]
    for at in range(0, 2000, 10):
        put(log, sent[at : at + 10])
    assert len(log.segments) > 3
    records = everything(log)
    assert values(records) == sent
    assert [record.offset for record in records] == list(range(2000))
    await rig.store.stop()


async def test_first_segments_are_small_and_double(rig: LogRig) -> None:
    (log,) = rig.open({"segment.bytes": str(1 << 20)})
    for _ in range(400):
        put(log, [b"x" * 5000])
    sizes = [segment.memory.size for segment in log.segments if segment.memory]
    assert sizes[:4] == [32768, 65536, 131072, 262144]
    assert max(sizes) == 1 << 20
    await rig.store.stop()


async def test_a_batch_larger_than_the_segment_size_gets_a_segment_of_its_own(rig: LogRig) -> None:
    (log,) = rig.open({"segment.bytes": "65536"})
    put(log, [b"small"])
    put(log, [b"y" * 300_000])
    put(log, [b"small again"])
    assert values(everything(log)) == [b"small", b"y" * 300_000, b"small again"]
    await rig.store.stop()


async def test_acknowledged_records_survive_kill_of_the_process(rig: LogRig) -> None:
    (log,) = rig.open({"segment.bytes": "65536"})
    sent = [b"%d" % at * 50 for at in range(1000)]
    for value in sent:
        put(log, [value])
    epoch = log.leader_epoch
    await rig.crash()
    (log,) = rig.open({"segment.bytes": "65536"})
    assert values(everything(log)) == sent
    assert log.log_end == log.high_watermark == 1000
    assert log.leader_epoch > epoch, "every start is a new epoch (R3)"
    assert put(log, [b"next"]).base_offset == 1000
    await rig.store.stop()


async def test_a_clean_stop_leaves_everything_on_disk(rig: LogRig) -> None:
    (log,) = rig.open({"segment.bytes": "65536"})
    sent = [b"%d" % at * 100 for at in range(1000)]
    for value in sent:
        put(log, [value])
    await rig.store.stop()
    rig.lose_memory()
    (log,) = rig.open({"segment.bytes": "65536"})
    assert values(everything(log)) == sent
    assert log.log_end == 1000, "after a clean stop no offset is skipped"
    await rig.store.stop()


async def test_offsets_that_were_shown_never_mean_another_record_after_memory_is_lost(rig: LogRig) -> None:
    """R9: readers saw up to 120, the disk ends at 100; new records must not take 100..120."""
    (log,) = rig.open()
    for at in range(100):
        put(log, [b"%d" % at])
    await rig.store.write_behind.durable()
    on_disk = log.segments[0].path.read_bytes()
    for at in range(100, 120):
        put(log, [b"%d" % at])
    await rig.crash()
    log.segments[0].path.write_bytes(on_disk)  # as if write-behind had not got to them
    rig.lose_memory()
    (log,) = rig.open()
    assert values(everything(log)) == [b"%d" % at for at in range(100)]
    assert put(log, [b"new"]).base_offset >= 120
    assert everything(log)[-1].value == b"new"
    await rig.store.stop()


async def test_without_a_ceiling_an_offset_means_another_record_after_memory_is_lost_r9(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9, a test of the test: without the rule the schedule above does its harm and is noticed."""

    def forgetful(memory: Path, disk: Path, record: PartitionRecord, now_ms: int) -> recovery.Recovered:
        return recovery.recover(memory, disk, replace(record, ceiling=0), now_ms)

    monkeypatch.setattr(store, "recover", forgetful)
    with pytest.raises(AssertionError, match="base_offset"):
        await test_offsets_that_were_shown_never_mean_another_record_after_memory_is_lost(rig)
    await rig.store.stop()


async def test_no_offset_is_shown_before_a_ceiling_above_it_is_on_disk(rig: LogRig) -> None:
    """R9: what a restart without memory goes on above has to be written before anybody reads."""
    (log,) = rig.open()
    put(log, [b"below"])
    log.ceiling = log.log_end
    with pytest.raises(CeilingReached):
        put(log, [b"above"])
    assert log.log_end == log.control.committed == log.control.appended == 1, "nothing has changed"
    await rig.store.raise_ceilings([log])
    assert put(log, [b"above"]).base_offset == 1
    assert rig.store.state.load()[rig.topic_id, 0].ceiling >= log.log_end
    await rig.store.stop()


async def test_a_torn_tail_on_disk_is_cut(rig: LogRig) -> None:
    (log,) = rig.open()
    for at in range(10):
        put(log, [b"%d" % at * 100])
    await rig.store.write_behind.durable()
    await rig.crash()
    path = log.segments[0].path
    os.truncate(path, path.stat().st_size - 7)
    rig.lose_memory()
    (log,) = rig.open()
    assert len(everything(log)) == 9
    await rig.store.stop()


@pytest.mark.parametrize("durability", ["memory", "disk"])
async def test_an_offset_that_its_newest_file_lost_is_not_used_again(rig: LogRig, durability: str) -> None:
    """It was damaged after a start from disk, and nothing of the log was in memory."""
    (log,) = rig.open({"durability": durability})
    for _ in range(10):
        put(log, [b"old"])
    await rig.store.stop()
    rig.lose_memory()
    (log,) = rig.open({"durability": durability})
    newest = log.segments[-1]
    await rig.crash()
    os.truncate(newest.path, newest.position_on_disk(9))
    newest.index_path.unlink(missing_ok=True)
    (log,) = rig.open({"durability": durability})
    assert put(log, [b"new"]).base_offset == 10
    await rig.store.write_behind.durable()
    assert [record.offset for record in everything(log)] == [*range(9), 10]
    await rig.store.stop()


async def test_damage_in_the_middle_is_reported_and_stops_nobody_else(rig: LogRig) -> None:
    first, second = rig.open({"segment.bytes": "65536"}, partitions=2)
    for at in range(600):
        put(first, [b"%d" % at * 100])
        put(second, [b"%d" % at])
    await rig.store.write_behind.durable()
    await rig.crash()
    path = first.segments[1].path
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    rig.lose_memory()
    first, second = rig.open({"segment.bytes": "65536"}, partitions=2)
    assert first.damage is not None
    assert str(path) in first.damage
    assert "offset" in first.damage
    assert "restore" in first.damage
    assert second.damage is None
    assert len(everything(second)) == 600
    await rig.store.stop()
    content[5000] ^= 1
    path.write_bytes(content)  # restored, as the text says
    first, second = rig.open({"segment.bytes": "65536"}, partitions=2)
    assert first.damage is None
    assert len(everything(first)) == len(everything(second)) == 600
    await rig.store.stop()


async def test_producer_sequences_survive_a_crash(rig: LogRig) -> None:
    """R5: a retry after the crash is recognised, across segments sealed before it."""
    (log,) = rig.open({"segment.bytes": "65536"})
    for at in range(200):
        put(log, [b"z" * 1000], producer=(7, 0, at))
    await rig.crash()
    (log,) = rig.open({"segment.bytes": "65536"})
    again = put(log, [b"z" * 1000], producer=(7, 0, 199))
    assert again.duplicate
    assert again.base_offset == 199
    with pytest.raises(KafkaError) as gap:
        put(log, [b"gap"], producer=(7, 0, 205))
    assert gap.value.code is ErrorCode.out_of_order_sequence_number
    assert put(log, [b"next"], producer=(7, 0, 200)).base_offset == 200
    await rig.store.stop()


async def test_producer_state_survives_loss_of_memory(rig: LogRig) -> None:
    (log,) = rig.open({"segment.bytes": "65536"})
    for at in range(200):
        put(log, [b"z" * 1000], producer=(7, 0, at))
    await rig.store.write_behind.durable()
    await rig.crash()
    rig.lose_memory()
    (log,) = rig.open({"segment.bytes": "65536"})
    assert put(log, [b"z" * 1000], producer=(7, 0, 199)).duplicate
    # Its batches 200 to 209 were acknowledged from memory and are lost; it can't go back, so it may go on.
    assert not put(log, [b"z" * 1000], producer=(7, 0, 210)).duplicate
    with pytest.raises(KafkaError):
        put(log, [b"z" * 1000], producer=(7, 0, 212))
    await rig.store.stop()


async def test_memory_is_bounded_and_old_segments_are_read_from_disk(rig: LogRig) -> None:
    rig.memory = 4 << 20
    (log,) = rig.open({"segment.bytes": str(1 << 18)})
    sent = []
    for at in range(2000):
        value = b"%06d" % at + os.urandom(10_000)
        sent.append(value)
        while True:
            try:
                put(log, [value])
                break
            except MemoryExhausted as full:
                assert await rig.store.room(full.size, 5.0)
        if at % 50 == 0:
            await rig.store.write_behind.durable()
    assert rig.store.pool.use.total <= 4 << 20
    assert not log.segments[0].is_hot
    assert rig.store.evictions > 10
    assert values(everything(log)) == sent
    assert put(log, [b"end"]).base_offset == 2000
    await rig.store.stop()


async def test_more_busy_partitions_than_large_segments_never_hold_all_the_memory(rig: LogRig) -> None:
    """What is appended to can't be evicted: if it were the whole budget, every append would be refused."""
    rig.memory = 8 << 20
    logs = rig.open(partitions=64)
    for _ in range(60):
        for log in logs:
            while True:
                try:
                    put(log, [bytes(10_000)])
                    break
                except MemoryExhausted as full:
                    assert await rig.store.room(full.size, 5.0), (log, full, rig.store.pool.use)
    assert sum(log.log_end for log in logs) * 10_000 > 4 * rig.memory
    await rig.store.stop()


async def test_few_busy_partitions_get_large_segments_again_when_others_are_gone(rig: LogRig) -> None:
    rig.memory = 8 << 20
    logs = rig.open(partitions=16)
    largest = rig.store.pool.largest

    async def fill(log: PartitionLog, size: int) -> int:
        end = log.bytes_in + size
        while log.bytes_in < end:
            try:
                put(log, [bytes(10_000)])
            except MemoryExhausted as full:
                assert await rig.store.room(full.size, 5.0)
        memory = log.segments[-1].memory
        assert memory is not None
        return memory.size

    assert await fill(logs[0], 4 * largest) == largest
    for log in logs[1:]:
        await fill(log, 4 * largest)
    assert await fill(logs[0], 4 * largest) < largest
    for log in logs[1:]:
        await rig.store.close_partition(log, delete=True)
    assert await fill(logs[0], 4 * largest) == largest
    await rig.store.stop()


async def test_a_full_disk_refuses_appends_and_recovers_by_itself(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.memory = 2 << 20
    (log,) = rig.open({"segment.bytes": str(1 << 17)})
    real = Segment.write_from

    def full(self: Segment, memory: object, start: int, end: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Segment, "write_from", full)
    acknowledged = []
    at = 0
    while True:
        value = b"%06d" % at * 200
        try:
            put(log, [value])
        except MemoryExhausted:
            break
        acknowledged.append(value)
        at += 1
    assert not await rig.store.room(1 << 17, 0.2)
    assert values(everything(log)) == acknowledged, "readers go on"
    assert "No space left" in (rig.store.write_behind.failure or "")
    monkeypatch.setattr(Segment, "write_from", real)
    while True:
        try:
            put(log, [b"room again"])
            break
        except MemoryExhausted as exhausted:
            assert await rig.store.room(exhausted.size, 5.0)
    assert values(everything(log)) == [*acknowledged, b"room again"]
    await rig.store.write_behind.durable()
    assert rig.store.write_behind.failure is None
    await rig.store.stop()


async def test_what_no_round_had_room_for_is_written_next_though_nothing_new_comes(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writebehind, "_ROUND_BYTES", 1)
    logs = rig.open(partitions=3)
    for log in logs:
        put(log, [b"v"])
    await asyncio.wait_for(until(lambda: not any(log.unflushed for log in logs)), 5)
    await rig.store.stop()


async def test_durable_is_what_was_asked_for_before_however_much_comes_after(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writebehind, "_ROUND_BYTES", 1)
    logs = rig.open(partitions=3)

    async def overload() -> None:
        while True:
            for log in logs:
                put(log, [b"more"])
            await asyncio.sleep(0)

    put(logs[2], [b"first"])
    overloading = asyncio.create_task(overload())
    try:
        await asyncio.wait_for(rig.store.write_behind.durable(), 5)
        assert logs[2].segments[0].flushed > 0
    finally:
        overloading.cancel()
    await rig.store.stop()


@pytest.mark.parametrize("topic", [False, True])
async def test_a_snapshot_of_a_log_that_goes_away_stops_nobody_else(rig: LogRig, topic: bool) -> None:
    """It was to be written next, into a directory that is no more: the disk seemed to refuse, for ever."""
    (log,) = rig.open()
    (other,) = rig.store.open([PartitionPlace("other", uuid.uuid4().bytes, 0, log.config, -1)])
    other.ceiling = log.ceiling
    go_on = rig.hold_disk()
    put(log, [b"x"])
    log.roll()
    going = rig.store.delete("t", rig.topic_id) if topic else rig.store.close_partition(log, delete=True)
    gone = asyncio.create_task(going)
    await asyncio.sleep(0)
    go_on.set()
    await gone
    put(other, [b"y"])
    await asyncio.wait_for(rig.store.write_behind.durable(), 2)
    assert other.unflushed == 0
    await rig.store.stop()


async def test_retention_makes_room_on_a_full_disk(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    (log,) = rig.open({"segment.bytes": str(1 << 17), "retention.bytes": str(1 << 18)})
    for at in range(40):
        put(log, [b"%06d" % at * 5000])
    await rig.store.write_behind.durable()
    assert len(list(log.disk_directory.glob("*.log"))) > 8
    real = Segment.write_from

    def full_while_there_are_old_files(self: Segment, memory: SegmentMemory, start: int, end: int) -> None:
        if len(list(log.disk_directory.glob("*.log"))) > 8:
            raise OSError(28, "No space left on device")
        real(self, memory, start, end)

    monkeypatch.setattr(Segment, "write_from", full_while_there_are_old_files)
    put(log, [b"no room"])
    await asyncio.wait_for(until(lambda: rig.store.write_behind.failure is not None), 5)
    await asyncio.wait_for(rig.store._retain(log), 5)
    await asyncio.wait_for(rig.store.write_behind.durable(), 5)
    assert rig.store.write_behind.failure is None
    assert log.unflushed == 0
    await rig.store.stop()


async def test_disk_durability_commits_only_after_the_sync(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = []
    real = Segment.sync
    monkeypatch.setattr(Segment, "sync", lambda self: (synced.append(self.size), real(self)))
    (log,) = rig.open({"durability": "disk"})
    result = put(log, [b"precious"])
    assert log.high_watermark == 0
    assert log.control.committed == 0, "readers in shared memory don't see it either"
    assert everything(log) == []
    await rig.store.write_behind.durable()
    assert synced
    assert log.high_watermark == log.control.committed == result.next_offset
    assert values(everything(log)) == [b"precious"]
    await rig.store.stop()


async def test_uncommitted_records_of_a_disk_topic_are_committed_after_a_crash(rig: LogRig) -> None:
    (log,) = rig.open({"durability": "disk"})
    put(log, [b"one"])
    await rig.store.write_behind.durable()
    put(log, [b"two"])
    await rig.crash()
    (log,) = rig.open({"durability": "disk"})
    await rig.store.write_behind.durable()
    assert values(everything(log)) == [b"one", b"two"]
    await rig.store.stop()


async def test_retention_by_size_drops_whole_old_segments(rig: LogRig) -> None:
    (log,) = rig.open({"segment.bytes": "65536", "retention.bytes": "200000"})
    for at in range(1000):
        put(log, [b"%06d" % at * 100])
    await rig.store.write_behind.durable()
    await rig.store._retain(log)
    assert 200_000 <= log.size <= 200_000 + 65536
    assert everything(log)[0].offset == log.log_start > 0
    assert log.control.log_start == log.log_start
    await rig.store.stop()
    (log,) = rig.open({"segment.bytes": "65536", "retention.bytes": "200000"})
    assert log.log_start > 0, "what is deleted stays deleted"
    await rig.store.stop()


async def test_retention_by_time_counts_from_the_newest_record_of_a_segment(rig: LogRig) -> None:
    (log,) = rig.open({"segment.bytes": "65536", "retention.ms": "1000"})
    for at in range(300):
        put(log, [b"old" * 100], timestamp=NOW + at)
    rig.clock.now = NOW + 1200
    put(log, [b"young"], timestamp=NOW + 1200)
    await rig.store.write_behind.durable()
    await rig.store._retain(log)
    assert everything(log)[-1].value == b"young"
    assert log.log_start > 0
    rig.clock.now = NOW + 10_000
    await rig.store._retain(log)
    assert everything(log) == [], "the newest segment goes too when all of it is too old"
    assert log.log_start == log.log_end == 301
    await rig.store.stop()


async def test_deleted_records_stay_deleted_after_a_crash(rig: LogRig) -> None:
    """R11 on one node."""
    (log,) = rig.open()
    for at in range(50):
        put(log, [b"%d" % at])
    await rig.store.delete_records(log, 20)
    await rig.crash()
    (log,) = rig.open()
    assert log.log_start == 20
    assert everything(log)[0].offset == 20
    with pytest.raises(KafkaError) as gone:
        log.read(5, 100)
    assert gone.value.code is ErrorCode.offset_out_of_range
    await rig.store.stop()


async def test_log_append_time_replaces_the_producers_clock(rig: LogRig) -> None:
    (log,) = rig.open({"message.timestamp.type": "LogAppendTime"})
    rig.clock.now = NOW + 5
    assert put(log, [b"a", b"b"], timestamp=1).append_time == NOW + 5
    assert [record.timestamp for record in everything(log)] == [NOW + 5, NOW + 5]
    await rig.store.stop()


async def test_every_epoch_knows_where_it_began(rig: LogRig) -> None:
    (log,) = rig.open()
    first = log.leader_epoch
    for _ in range(3):
        put(log, [b"x"])
    await rig.crash()
    (log,) = rig.open()
    put(log, [b"x"])
    assert log.end_offset_for_epoch(first).start_offset == 3
    assert log.end_offset_for_epoch(log.leader_epoch).start_offset == 4
    await rig.store.stop()


async def test_an_epoch_once_promised_is_never_used_again(rig: LogRig) -> None:
    """R3: the promise is in part.ctl, so that it holds even if the metadata was restored from a backup."""
    (log,) = rig.open()
    log.control.promised_epoch = 41
    await rig.crash()
    (log,) = rig.open()
    assert log.leader_epoch == 42
    await rig.store.stop()


async def test_damage_in_memory_is_reported_and_the_disk_copy_can_be_taken_instead(rig: LogRig) -> None:
    (log,) = rig.open()
    for at in range(50):
        put(log, [b"%d" % at * 30])
    await rig.store.write_behind.durable()
    await rig.crash()
    memory = log.segments[-1].memory
    assert memory is not None
    memory.view[4096 + 16 + log.segments[-1].position_of(20)] = 9  # the magic of a batch in the middle
    (log,) = rig.open()
    assert log.damage is not None
    assert str(memory.path) in log.damage
    await rig.store.stop()
    memory.path.unlink()
    (log,) = rig.open()
    assert log.damage is None
    assert len(everything(log)) == 50
    await rig.store.stop()


async def test_an_idle_store_looks_at_its_memory_as_often_as_its_heart_beats_and_wakes_for_more(
    rig: LogRig,
) -> None:
    (log,) = rig.open({"segment.bytes": "65536"})
    looks: list[float] = []
    look = rig.store._reclaim
    rig.store._reclaim = lambda: (looks.append(time.monotonic()), look())[1]  # type: ignore[method-assign]
    await asyncio.sleep(1.0)
    assert 0 < len(looks) <= 12
    looks.clear()
    for _ in range(10):  # segments are sealed, sent to disk and recycled: every 20 ms
        put(log, [b"x" * 60_000])
        await asyncio.sleep(0.05)
    assert min(after - before for before, after in pairwise(looks)) < HEARTBEAT / 2
    await rig.store.stop()


@interpreted
async def test_a_log_whose_hole_could_not_be_cut_off_is_out_of_service_r1(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    (log,) = rig.open(lead=False)
    for _ in range(3):
        take(log, 1, 10)
        log.roll()
    await rig.store.write_behind.durable()
    for segment in log.segments[:2]:
        log.evict(segment)
    log.segments[1].path.unlink()
    await rig.crash()
    with monkeypatch.context() as refused:

        def refuse(_log: PartitionLog, _offset: int) -> None:
            raise OSError("no space left")

        refused.setattr(PartitionLog, "truncate", refuse)
        (log,) = rig.open(lead=False)
        assert "no space left" in (log.damage or ""), "it ends at 30, and 10 to 20 are not there"
        await rig.crash()
    (log,) = rig.open(lead=False)
    assert (log.damage, log.log_end) == (None, 10)
    await rig.crash()
