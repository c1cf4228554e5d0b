"""Write-behind: every segment's way from shared memory to disk, on a thread of its own.

The event loop collects what is new since the last round; the thread copies it, syncs what asked for
it, writes the indexes of sealed segments and saves partition state; the loop then notes what is on disk
and commits what waited for that. A disk that refuses is tried again until it takes the data: nothing
leaves memory before it is on disk, so a full disk ends in refused appends, never in lost records. State is
saved even then: retention, which waits for that, is what may make room.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from penstock.log.config import Durability
from penstock.log.partition import CEILING_STEP, PartitionLog
from penstock.log.segment import Segment
from penstock.log.spares import SpareFiles
from penstock.log.state import LocalState, PartitionRecord
from penstock.shm.memory import SegmentMemory

log = logging.getLogger(__name__)

DELAY: Final = 0.03
"""Seconds that new bytes may wait, so that one write takes many batches."""
RETRY: Final = 0.5
_ROUND_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class _Copy:
    segment: Segment
    memory: SegmentMemory
    start: int
    end: int
    finish: bool


@dataclass(slots=True)
class _Round:
    partitions: list[PartitionLog] = field(default_factory=list)
    copies: list[_Copy] = field(default_factory=list)
    syncs: list[Segment] = field(default_factory=list)
    synced: list[PartitionLog] = field(default_factory=list)
    files: list[tuple[Path, bytes]] = field(default_factory=list)
    records: list[PartitionRecord] = field(default_factory=list)
    ceilings: list[tuple[PartitionLog, int]] = field(default_factory=list)
    skipped: set[PartitionLog] = field(default_factory=set)
    """Dirty ones that come first in the next round: this one is large enough."""
    saved: bool = False


class _Waiter:
    """Who waits until all that was asked for before is on disk, however much is asked for after it."""

    __slots__ = ("done", "left")

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.left: set[PartitionLog] | None = None
        """What no round since then has had its turn for; None before the first round."""


class WriteBehind:
    def __init__(
        self, state: LocalState, spares: SpareFiles, record_of: Callable[[PartitionLog], PartitionRecord]
    ) -> None:
        self._state = state
        self.spares = spares
        self._record_of = record_of
        self._dirty: list[PartitionLog] = []
        self._files: list[tuple[Path, bytes]] = []
        self._round = _Round()
        """The one that the thread has."""
        self._changed: set[PartitionLog] = set()
        self._wanted = asyncio.Event()
        self._urgent = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="write-behind")
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[_Waiter] = []
        self._saving: list[asyncio.Future[None]] = []
        self.failure: str | None = None
        """What the disk said when it last refused; None while all is well."""
        self.bytes_written = 0
        self.oldest_dirty: float | None = None
        """Monotonic time since when something has been waiting to be written."""

    # Called on the event loop by the logs and the store

    def note_dirty(self, partition: PartitionLog) -> None:
        self._dirty.append(partition)
        if self.oldest_dirty is None:
            self.oldest_dirty = time.monotonic()
        self._wanted.set()
        if partition.config.durability is Durability.DISK:
            self._urgent.set()

    def save_file(self, path: Path, content: bytes) -> None:
        """Write a small file (a producers' snapshot) in the next round."""
        self._files.append((path, content))
        self._wanted.set()

    def forget_files(self, gone: Callable[[Path], bool]) -> None:
        """Don't write these after all, nor again: what they tell of was truncated, or is no more."""
        self._files = [entry for entry in self._files if not gone(entry[0])]
        self._round.files = [entry for entry in self._round.files if not gone(entry[0])]

    def save_state(self, partition: PartitionLog) -> None:
        self._changed.add(partition)
        self._wanted.set()

    async def durable(self) -> None:
        """Wait until everything asked for so far is on disk; waits for ever while the disk refuses."""
        waiter = _Waiter()
        self._waiting.append(waiter)
        self._hurry()
        await waiter.done

    async def saved(self) -> None:
        """Wait until the state that was to be saved so far is on disk; the records may still be in memory."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._saving.append(waiter)
        self._hurry()
        await waiter

    def _hurry(self) -> None:
        self._wanted.set()
        self._urgent.set()

    async def on_thread(self, work: Callable[[], None]) -> None:
        """Run something on the disk thread, between rounds."""
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def soon(self, work: Callable[[], None]) -> None:
        """The same without waiting, for what may only be tried."""

        def attempt() -> None:
            try:
                work()
            except OSError as error:
                log.error("%s", error)

        asyncio.get_running_loop().run_in_executor(self._thread, attempt)

    @property
    def lag(self) -> float:
        return 0.0 if self.oldest_dirty is None else time.monotonic() - self.oldest_dirty

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="write-behind")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._thread.shutdown()

    # The task

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wanted.wait()
            if not self._urgent.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._urgent.wait(), DELAY)
            self._wanted.clear()
            self._urgent.clear()
            waiting, self._waiting = self._waiting, []
            saving, self._saving = self._saving, []
            started = time.monotonic()
            work = self._collect()
            error = await loop.run_in_executor(self._thread, self._write, work)
            self._settle(work, error, started)
            self._round = _Round()
            if work.saved:
                _resolve(saving)
            else:
                self._saving = saving + self._saving
            if error is None:
                self._waiting = _still_waiting(waiting, work.skipped) + self._waiting
                if work.skipped:
                    self._hurry()
            else:
                for waiter in waiting:
                    waiter.left = None
                self._waiting = waiting + self._waiting
                await asyncio.sleep(RETRY)

    def _collect(self) -> _Round:
        work = self._round = _Round(files=self._files)
        self._files = []
        dirty, self._dirty = self._dirty, []
        budget = _ROUND_BYTES
        for partition in dirty:
            partition.dirty = False
            if partition.deleted:
                continue
            if budget <= 0:
                partition.dirty = True
                self._dirty.append(partition)
                work.skipped.add(partition)
                continue
            work.partitions.append(partition)
            sync = partition.config.durability is Durability.DISK
            for segment in _unwritten(partition):
                memory = segment.memory
                assert memory is not None
                memory.holds += 1
                work.copies.append(_Copy(segment, memory, segment.flushed, segment.size, segment.sealed))
                budget -= segment.size - segment.flushed
                if sync:
                    work.syncs.append(segment)
            if sync:
                partition.syncing()
                work.synced.append(partition)
            if _is_near_its_ceiling(partition):
                self._changed.add(partition)
        for partition in self._changed:
            if not partition.deleted:
                work.partitions.append(partition)
                record = self._record_of(partition)
                if _is_near_its_ceiling(partition):
                    record = replace(record, ceiling=partition.log_end + CEILING_STEP)
                    work.ceilings.append((partition, record.ceiling))
                work.records.append(record)
        self._changed = set()
        return work

    def _write(self, work: _Round) -> OSError | None:
        """On the thread. What was done before an error is noted by the caller all the same."""
        refused = _attempt(lambda: self._write_files(work)) or _attempt(lambda: self._finish_files(work))
        not_saved = _attempt(lambda: self._state.save(work.records))
        work.saved = not_saved is None
        return refused or not_saved

    def _write_files(self, work: _Round) -> None:
        for copy in work.copies:
            if copy.start == 0 and copy.segment.descriptor < 0:
                copy.segment.descriptor = self.spares.create(copy.segment.path)
            copy.segment.write_from(copy.memory, copy.start, copy.end)
            self.bytes_written += copy.end - copy.start
        for path, content in work.files:
            self.spares.write(path, content)

    def _finish_files(self, work: _Round) -> None:
        for segment in work.syncs:
            segment.sync()
        for copy in work.copies:
            if copy.finish:
                copy.segment.finish_file(self.spares)

    def _settle(self, work: _Round, error: OSError | None, started: float) -> None:
        for copy in work.copies:
            copy.memory.holds -= 1
        if work.saved:
            for partition, ceiling in work.ceilings:
                partition.ceiling = max(partition.ceiling, ceiling)
        if error is not None:
            if self.failure is None:
                log.error(
                    "disk refused to take the log: %s; records stay in memory, trying again every %.1f s",
                    error,
                    RETRY,
                )
            self.failure = str(error)
            self._retry(work)
            return
        if self.failure is not None:
            log.info("disk takes the log again after: %s", self.failure)
            self.failure = None
        for copy in work.copies:
            # Cut meanwhile, it is never written again.
            copy.segment.note_flushed(min(copy.end, copy.segment.size))
        for partition in work.synced:
            partition.synced()
        self.oldest_dirty = started if self._dirty else None

    def _retry(self, work: _Round) -> None:
        self._files = work.files + self._files
        for partition in work.partitions:
            self._changed.add(partition)
            if not partition.dirty and not partition.deleted:
                partition.dirty = True
                self._dirty.append(partition)
        self._wanted.set()


def _attempt(work: Callable[[], None]) -> OSError | None:
    try:
        work()
    except OSError as error:
        return error
    except Exception as error:  # sqlite3 has its own words for a full disk
        return OSError(str(error))
    return None


def _still_waiting(waiting: list[_Waiter], skipped: set[PartitionLog]) -> list[_Waiter]:
    """After a round: those for whom something is left. A partition's turn takes all that it has."""
    for waiter in waiting:
        waiter.left = skipped if waiter.left is None else waiter.left & skipped
    _resolve(waiter.done for waiter in waiting if not waiter.left)
    return [waiter for waiter in waiting if waiter.left]


def _resolve(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


def _is_near_its_ceiling(partition: PartitionLog) -> bool:
    return partition.ceiling - partition.log_end < CEILING_STEP // 2


def _unwritten(partition: PartitionLog) -> list[Segment]:
    """Hot segments with bytes that are not on disk, or sealed ones whose file is still open, in order."""
    found = []
    for segment in reversed(partition.segments):
        if segment.memory is None or (
            segment.sealed and segment.flushed == segment.size and segment.descriptor < 0
        ):
            break
        if segment.size > segment.flushed or (segment.sealed and segment.descriptor >= 0):
            found.append(segment)
    return found[::-1]
