"""A crash finds a log and what was saved of it at two different moments: the log's records decide."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from log_rig import NOW, LogRig, everything, take

from penstock.log.partition import PartitionLog
from penstock.log.state import LocalState
from penstock.log.writebehind import WriteBehind, _Round
from penstock.wire import batch
from penstock.wire.batch import BatchHeader
from penstock.wire.records import Record, encode_batch


async def replica(rig: LogRig, **configs: str) -> PartitionLog:
    (log,) = rig.open(configs, lead=False)
    return log


async def saved(rig: LogRig, log: PartitionLog) -> None:
    rig.store.write_behind.save_state(log)
    await rig.store.write_behind.saved()


async def test_an_epoch_that_was_cut_off_does_not_come_back(rig: LogRig) -> None:
    log = await replica(rig)
    take(log, 4, 100)
    log.begin_epoch(5)
    await saved(rig, log)
    rig.store.truncate(log, 90)
    take(log, 6, 30)
    await rig.crash()
    log = await replica(rig)
    assert log.log_end == 120
    assert log.epochs == [(4, 0), (6, 90)]
    assert log.end_offset_for_epoch(4) == (4, 90), "whoever has more of epoch 4 is cut to that"
    await rig.crash()


async def test_an_epoch_that_was_cut_off_gives_way_to_an_older_one(rig: LogRig) -> None:
    """It led epoch 7 from 100 on; whoever led epoch 8 had records of epoch 5 there."""
    log = await replica(rig)
    take(log, 4, 100)
    log.begin_epoch(7)
    await saved(rig, log)
    rig.store.truncate(log, 90)
    take(log, 5, 29)
    take(log, 8, 10)
    await rig.crash()
    log = await replica(rig)
    assert log.epochs == [(4, 0), (5, 90), (8, 119)]
    await rig.crash()


async def test_epochs_are_found_wherever_in_the_segments_they_begin(rig: LogRig) -> None:
    log = await replica(rig)
    await saved(rig, log)
    for epoch, count in ((1, 7), (2, 90), (3, 1), (5, 160), (6, 33)):
        for _ in range(count):
            take(log, epoch, 1)
            if log.log_end % 20 == 0:
                log.roll()
    assert len(log.segments) > 10
    epochs = list(log.epochs)
    await rig.crash()
    log = await replica(rig)
    assert log.epochs == epochs == [(1, 0), (2, 7), (3, 97), (5, 98), (6, 258)]
    await rig.crash()


async def test_epochs_of_records_that_only_the_disk_has_are_as_the_records_say(rig: LogRig) -> None:
    """Power went between the writing of the records and the saving of the table, or the other way round."""
    log = await replica(rig)
    take(log, 4, 100)
    log.begin_epoch(5)
    await saved(rig, log)
    older = rig.store.state.load()
    rig.store.truncate(log, 90)
    take(log, 6, 30)
    await rig.store.write_behind.durable()
    rig.store.state.save(older.values())
    await rig.crash()
    rig.lose_memory()
    log = await replica(rig)
    assert log.log_end == 120
    assert log.epochs == [(4, 0), (6, 90)]
    await rig.crash()


async def test_a_clean_stop_keeps_the_epochs(rig: LogRig) -> None:
    log = await replica(rig)
    take(log, 4, 10)
    take(log, 6, 10)
    await rig.store.stop()
    rig.lose_memory()
    log = await replica(rig)
    assert log.epochs == [(4, 0), (6, 10)]
    log.commit(20)
    assert len(everything(log)) == 20
    await rig.crash()


# Files


async def test_a_file_of_records_that_were_cut_is_not_taken_for_that_of_the_new_ones(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kill -9 came before the disk thread had deleted it, and the new segment has its name."""
    log = await replica(rig)
    take(log, 1, 10)
    log.roll()
    take(log, 1, 10, b"old")
    await rig.store.write_behind.durable()
    monkeypatch.setattr(rig.store.write_behind, "soon", lambda work: None)
    rig.store.truncate(log, 10)
    take(log, 2, 8, b"new")
    await rig.crash()
    log = await replica(rig)
    await rig.store.write_behind.durable()
    for segment in log.segments:
        assert segment.read_file() == segment.bytes_between(0, segment.size)
    await rig.crash()


async def test_a_file_has_no_more_than_its_segment_after_a_cut_that_was_cut_short(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await replica(rig)
    take(log, 1, 10, b"old")
    log.roll()
    take(log, 1, 10, b"old")
    await rig.store.write_behind.durable()
    monkeypatch.setattr(rig.store.write_behind, "soon", lambda work: None)
    rig.store.truncate(log, 5)
    take(log, 2, 8, b"new")
    await rig.crash()
    log = await replica(rig)
    await rig.store.write_behind.durable()
    for segment in log.segments:
        assert segment.read_file() == segment.bytes_between(0, segment.size)
    names = {path.stem for path in log.disk_directory.iterdir()}
    assert names == {segment.path.stem for segment in log.segments}, "nothing is left of those that are gone"
    await rig.crash()


# Where the log begins


async def test_a_log_begun_anew_at_a_lower_offset_ends_where_its_records_do(rig: LogRig) -> None:
    log = await replica(rig)
    rig.store.reset(log, 500)
    take(log, 1, 10)
    await saved(rig, log)
    storage = log.storage_id
    rig.store.reset(log, 0)
    take(log, 2, 100)
    await rig.crash()
    log = await replica(rig)
    assert (log.log_start, log.log_end) == (0, 100), "it has nothing of what was there before"
    assert log.epochs == [(2, 0)]
    assert log.storage_id == storage
    await rig.crash()


@pytest.mark.parametrize("anew", [30, 600])
async def test_a_log_begun_anew_has_no_older_files(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch, anew: int
) -> None:
    log = await replica(rig)
    take(log, 1, 20)
    log.roll()
    take(log, 1, 20)
    await rig.store.write_behind.durable()
    storage = log.storage_id
    monkeypatch.setattr(rig.store.write_behind, "soon", lambda work: None)
    rig.store.reset(log, anew)
    take(log, 2, 10)
    await rig.crash()
    log = await replica(rig)
    assert (log.log_start, log.log_end) == (anew, anew + 10)
    assert [segment.base_offset for segment in log.segments] == [anew]
    assert log.storage_id == storage
    await rig.crash()


def refuse_state(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*_: object) -> None:
        raise OSError("full")

    monkeypatch.setattr(LocalState, "save", save)


async def test_a_backup_deletes_no_file_before_the_log_start_behind_it_is_saved(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine died in between: a log without its beginning was no log, and all of it was deleted."""
    log = await replica(rig)
    for _ in range(3):
        take(log, 1, 10)
        log.roll()
    log.commit(30)
    await rig.store.write_behind.durable()
    with monkeypatch.context() as patch:
        refuse_state(patch)
        rig.store.follow_log_start(log, 10)
        await asyncio.sleep(0.1)
        await rig.store.write_behind.on_thread(lambda: None)
        await rig.crash()
    rig.lose_memory()
    log = await replica(rig)
    assert log.log_end == 30
    log.commit(30)
    rig.store.follow_log_start(log, 10)
    await asyncio.gather(*rig.store._dropping)
    assert not (log.disk_directory / f"{0:020d}.log").exists()
    await rig.crash()


async def test_a_log_begun_anew_keeps_its_files_though_older_ones_of_their_names_were_to_go(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await replica(rig)
    take(log, 1, 10, b"old")
    log.roll()
    take(log, 1, 10, b"old")
    log.commit(20)
    await rig.store.write_behind.durable()
    with monkeypatch.context() as patch:
        refuse_state(patch)
        rig.store.follow_log_start(log, 10)
        await asyncio.sleep(0.1)
        rig.store.reset(log, 0)
        take(log, 2, 5, b"new")
    await asyncio.gather(*rig.store._dropping, rig.store.write_behind.durable())
    (segment,) = log.segments
    assert segment.read_file() == segment.bytes_between(0, segment.size)
    await rig.crash()


# Which log it is


class Killed(Exception):
    pass


async def killed_while_opening(rig: LogRig, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(LocalState, "save", save)
        with pytest.raises(Killed):
            await replica(rig)
        await rig.crash()


async def test_a_log_that_lost_its_memory_is_another_one_though_its_first_start_was_killed_r1(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await replica(rig)
    take(log, 1, 10)
    await rig.store.write_behind.durable()
    storage = log.storage_id
    take(log, 1, 10)  # acknowledged from memory, and never on disk
    await rig.crash()
    rig.lose_memory()
    await killed_while_opening(rig, monkeypatch)
    log = await replica(rig)
    assert log.log_end == 10
    assert log.storage_id != storage
    await rig.crash()


async def test_a_log_with_a_hole_is_another_one_though_its_first_start_was_killed_r1(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await replica(rig)
    take(log, 1, 10)
    log.roll()
    take(log, 1, 10)
    await rig.store.write_behind.durable()
    storage = log.storage_id
    first = log.segments[0]
    log.evict(first)
    first.path.unlink()
    await rig.crash()
    await killed_while_opening(rig, monkeypatch)
    log = await replica(rig)
    assert log.storage_id != storage
    await rig.crash()


@pytest.mark.parametrize("memory_lost", [False, True])
async def test_a_log_with_a_hole_is_another_one_that_ends_before_the_hole_r1(
    rig: LogRig, memory_lost: bool
) -> None:
    log = await replica(rig)
    take(log, 1, 10)
    log.roll()
    take(log, 1, 10)
    log.roll()
    take(log, 2, 10)
    log.commit(30)
    await saved(rig, log)
    await rig.store.write_behind.durable()
    storage = log.storage_id
    for segment in log.segments[:2]:
        log.evict(segment)
    log.segments[1].path.unlink()
    await rig.crash()
    if memory_lost:
        rig.lose_memory()
    log = await replica(rig)
    assert log.storage_id != storage
    assert log.high_watermark <= log.log_end == 10
    assert log.control.committed == log.high_watermark
    assert log.epochs == [(1, 0)]
    assert log.lost_up_to >= 30, "if nobody has more: no offset means two records"
    take(log, 3, 5)
    log.commit(15)
    assert [record.offset for record in everything(log)] == list(range(15))
    storage = log.storage_id
    await rig.store.write_behind.durable()
    await rig.crash()
    log = await replica(rig)
    assert (log.storage_id, log.log_end) == (storage, 15)
    assert [int(path.stem) for path in sorted(log.disk_directory.glob("*.log"))] == [0, 10]
    await rig.crash()


async def test_a_log_without_segments_in_memory_is_another_one_if_its_newest_file_lost_something_r1(
    rig: LogRig,
) -> None:
    log = await replica(rig)
    take(log, 1, 10)
    await rig.store.stop()
    rig.lose_memory()
    log = await replica(rig)
    assert (log.log_end, log.segments[-1].is_hot) == (10, False)
    storage, newest = log.storage_id, log.segments[-1]
    await rig.crash()
    os.truncate(newest.path, newest.position_on_disk(9))
    newest.index_path.unlink(missing_ok=True)
    log = await replica(rig)
    assert log.log_end == 9
    assert log.storage_id != storage
    assert log.lost_up_to == 10
    await rig.crash()


async def test_a_whole_log_is_the_same_though_its_first_start_was_killed(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await replica(rig)
    take(log, 1, 10)
    storage = log.storage_id
    await rig.crash()
    await killed_while_opening(rig, monkeypatch)
    log = await replica(rig)
    assert (log.storage_id, log.log_end) == (storage, 10)
    await rig.crash()


async def test_a_damaged_log_is_the_same_once_it_is_mended(rig: LogRig) -> None:
    log = await replica(rig)
    take(log, 1, 10)
    log.roll()
    take(log, 1, 10)
    log.promise(7)
    await saved(rig, log)
    await rig.store.write_behind.durable()
    path = log.segments[0].path
    await rig.crash()
    rig.lose_memory()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"!")
    log = await replica(rig)
    assert log.damage is not None
    await rig.crash()
    path.write_bytes(whole)
    log = await replica(rig)
    assert log.damage is None
    assert log.log_end == 20
    assert log.promised_epoch == 7
    await rig.crash()


async def test_a_snapshot_of_producers_that_were_cut_is_not_written_when_the_disk_takes_data_again(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await replica(rig)
    take(log, 1, 10)
    log.roll()
    snapshot = log.segments[-1].producers_path
    take(log, 1, 10)
    write = WriteBehind._write_files
    under_way, go_on = threading.Event(), threading.Event()

    def refuse(behind: WriteBehind, work: _Round) -> None:
        monkeypatch.setattr(WriteBehind, "_write_files", write)
        under_way.set()
        go_on.wait()
        raise OSError("full")

    monkeypatch.setattr(WriteBehind, "_write_files", refuse)
    await asyncio.get_running_loop().run_in_executor(None, under_way.wait)
    rig.store.truncate(log, 5)
    go_on.set()
    await rig.store.write_behind.durable()
    assert log.unflushed == 0
    assert not snapshot.exists()
    await rig.crash()


def take_from_producer(log: PartitionLog, first: int, count: int) -> BatchHeader:
    """As `take`, of producer 9 with sequences from `first` on; the last batch's header."""
    for sequence in range(first, first + count):
        encoded = encode_batch(
            [Record(log.log_end, NOW, None, b"x")],
            base_offset=log.log_end,
            leader_epoch=1,
            producer_id=9,
            producer_epoch=0,
            base_sequence=sequence,
        )
        log.append_run(memoryview(encoded))
    return batch.read_header(encoded)


async def test_a_snapshot_that_is_to_be_deleted_brings_no_producer_back_r5(rig: LogRig) -> None:
    """A segment begins where one was cut off whose files are still there: a retry is no duplicate."""
    log = await replica(rig)
    take(log, 1, 10)
    cut = take_from_producer(log, 0, 10)
    log.roll()
    take(log, 1, 5)
    await rig.store.write_behind.durable()
    assert log.segments[-1].producers_path.exists()
    go_on = rig.hold_disk()
    rig.store.truncate(log, 10)
    take(log, 2, 15)
    rig.store.truncate(log, 20)
    assert log.segments[-1].producers_path.exists()
    assert log.producers.find_duplicate(cut) is None
    go_on.set()
    await rig.crash()


async def test_a_snapshot_that_a_kill_left_brings_no_producer_back_r5(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await replica(rig)
    take(log, 1, 10)
    cut = take_from_producer(log, 0, 10)
    log.roll()
    take(log, 1, 5)
    await rig.store.write_behind.durable()
    monkeypatch.setattr(rig.store.write_behind, "soon", lambda work: None)
    rig.store.truncate(log, 10)
    take(log, 2, 10)
    log.roll()
    take(log, 2, 5)
    await rig.crash()
    for _ in range(2):  # nor when the new segment is on disk
        log = await replica(rig)
        assert [segment.base_offset for segment in log.segments] == [0, 10, 20]
        assert log.producers.find_duplicate(cut) is None
        await rig.store.write_behind.durable()
        await rig.crash()
