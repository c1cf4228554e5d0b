"""`durability=disk`: what a round of write-behind vouches for while the log is cut under it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from log_rig import LogRig, take

from penstock.log.partition import PartitionLog
from penstock.log.writebehind import WriteBehind, _Round

DISK = {"durability": "disk"}


class SlowDisk:
    """Holds the rounds back, each once it has written its files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._written = threading.Semaphore(0)
        self._go_on = threading.Semaphore(0)
        self.slow = True
        finish = WriteBehind._finish_files

        def late(behind: WriteBehind, work: _Round) -> None:
            if self.slow:
                self._written.release()
                self._go_on.acquire()
            finish(behind, work)

        monkeypatch.setattr(WriteBehind, "_finish_files", late)

    async def written(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._written.acquire)

    def go_on(self, *, slow: bool) -> None:
        self.slow = slow
        self._go_on.release()


def backup(rig: LogRig) -> PartitionLog:
    (log,) = rig.open(DISK, lead=False)
    log.on_synced = lambda _: None
    return log


async def test_a_sync_vouches_for_nothing_that_came_after_a_truncation(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = backup(rig)
    take(log, 1, 50)
    await rig.store.write_behind.durable()
    assert log.durable_end == 50
    disk = SlowDisk(monkeypatch)
    take(log, 1, 60)
    await disk.written()
    rig.store.truncate(log, 100)
    take(log, 2, 15)
    disk.go_on(slow=True)
    await disk.written()  # the next round: the first one is settled
    assert log.durable_end == 100, "the newer records are in memory only"
    disk.go_on(slow=False)
    await rig.store.write_behind.durable()
    assert log.durable_end == 115
    await rig.store.stop()


async def test_a_sync_vouches_for_what_a_truncation_left_though_nothing_comes_after(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = backup(rig)
    disk = SlowDisk(monkeypatch)
    take(log, 1, 60)
    await disk.written()
    rig.store.truncate(log, 40)
    disk.go_on(slow=False)
    await rig.store.write_behind.durable()
    assert log.durable_end == 40
    await rig.store.stop()


async def test_a_sync_vouches_for_nothing_of_a_log_that_was_begun_anew(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = backup(rig)
    disk = SlowDisk(monkeypatch)
    take(log, 1, 60)
    await disk.written()
    rig.store.reset(log, 20)
    take(log, 2, 30)
    disk.go_on(slow=True)
    await disk.written()
    assert log.durable_end == 20
    disk.go_on(slow=False)
    await rig.store.write_behind.durable()
    assert log.durable_end == 50
    await rig.store.stop()


@pytest.mark.parametrize("cut", [0, 10, 37, 40])
async def test_what_was_cut_and_written_anew_within_a_round_is_on_disk_as_it_is_in_memory(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    log = backup(rig)
    take(log, 1, 40)
    log.roll()
    disk = SlowDisk(monkeypatch)
    take(log, 1, 20, b"old")
    await disk.written()
    rig.store.truncate(log, cut)
    take(log, 2, 30, b"new")
    expected = [bytes(s.bytes_between(0, s.size)) for s in log.segments if s.size]
    disk.go_on(slow=False)
    await rig.store.write_behind.durable()
    assert [s.read_file() for s in log.segments if s.size] == expected
    assert all(s.flushed == s.size for s in log.segments)
    await rig.store.stop()


async def test_bytes_that_a_killed_process_wrote_and_did_not_sync_are_synced_before_they_count(
    rig: LogRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = backup(rig)
    take(log, 1, 60)
    log.commit(30)
    refused = asyncio.Event()
    loop = asyncio.get_running_loop()

    def refuse(*_: object) -> None:
        loop.call_soon_threadsafe(refused.set)
        raise OSError("not synced")

    with monkeypatch.context() as patch:
        patch.setattr(WriteBehind, "_finish_files", refuse)
        await refused.wait()
        await rig.crash()
    synced: list[int] = []
    finish = WriteBehind._finish_files

    def noted(behind: WriteBehind, work: _Round) -> None:
        synced.extend(segment.base_offset for segment in work.syncs)
        finish(behind, work)

    monkeypatch.setattr(WriteBehind, "_finish_files", noted)
    log = backup(rig)
    assert log.log_end == 60
    assert log.durable_end == 0
    await rig.store.write_behind.durable()
    assert log.durable_end == 60
    assert synced == [0]
    await rig.store.stop()


async def test_after_a_loss_of_power_what_was_vouched_for_is_there_in_a_log_that_counts_as_new(
    rig: LogRig,
) -> None:
    log = backup(rig)
    take(log, 1, 60)
    await rig.store.write_behind.durable()
    vouched, storage, ceiling = log.durable_end, log.storage_id, log.ceiling
    await rig.crash()
    rig.lose_memory()
    log = backup(rig)
    assert log.log_end == vouched == 60
    assert log.storage_id != storage
    assert log.lost_up_to >= ceiling > 60
    await rig.store.stop()
