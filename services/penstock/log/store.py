"""All the logs of one broker: opening, closing and deleting them, and keeping their memory in bounds.

The broker makes one, `open`s the partitions it has, and stops it at the end. A task ticks: it beats the
heart that readers watch, ten times a second, and, more often while segments come and go, evicts cold memory
ahead of need and takes back what nobody holds. Another keeps house: retention, compaction, expiry.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from penstock.log import leftovers
from penstock.log.compaction import compact, wants_compaction
from penstock.log.config import Durability, LogConfig
from penstock.log.leftovers import Leftover, PartitionKey
from penstock.log.partition import CEILING_STEP, EpochStart, PartitionLog
from penstock.log.pool import MemoryExhausted, SegmentPool
from penstock.log.recovery import Recovered, recover
from penstock.log.segment import Segment
from penstock.log.spares import SpareFiles
from penstock.log.state import LocalState, PartitionRecord
from penstock.log.writebehind import WriteBehind
from penstock.shm import layout
from penstock.shm.control import NodeControl
from penstock.shm.cursors import ReaderRegistry

log = logging.getLogger(__name__)

TICK: Final = 0.02
"""Seconds between looks while memory moves."""
HEARTBEAT: Final = 0.1
"""The same while nothing does, and between beats of the heart."""
RETENTION_SECONDS: Final = 5.0
_WITHOUT_A_TURN: Final = 0.1
_TURN: Final = 0.01
"""Seconds: time to answer a probe while the log is brought back."""
PRODUCER_EXPIRY_MS: Final = 24 * 60 * 60 * 1000


def new_id() -> int:
    """Of a process or of a storage: never 0, never seen before."""
    return secrets.randbits(62) | 1


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class PartitionPlace:
    """A partition that this broker has, as the metadata tells it."""

    topic: str
    topic_id: bytes
    partition: int
    config: LogConfig
    leader_epoch: int
    lead: bool = True
    """Lead it at once, in a new epoch. Otherwise it waits for what the cluster says."""


class LogStore:
    def __init__(
        self,
        *,
        broker_id: int,
        memory_root: Path,
        disk_root: Path,
        memory_budget: int,
        cursors_root: Path | None = None,
        clock: Callable[[], int] = wall_clock_ms,
        draw: Callable[[], int] = new_id,
        retention_seconds: float = RETENTION_SECONDS,
    ) -> None:
        self.broker_id = broker_id
        self.memory_directory = layout.broker_dir(memory_root, broker_id)
        self.disk_directory = disk_root
        self.memory_directory.mkdir(parents=True, exist_ok=True)
        (disk_root / "topics").mkdir(parents=True, exist_ok=True)
        self.incarnation = draw()
        self._draw = draw
        self.readers = ReaderRegistry(
            self.memory_directory,
            layout.broker_dir(cursors_root, broker_id) if cursors_root is not None else None,
        )
        self.pool = SegmentPool(self.memory_directory / "pool", memory_budget)
        self.logs: dict[PartitionKey, PartitionLog] = {}
        self.state = LocalState(disk_root / "local.db")
        self.write_behind = WriteBehind(self.state, SpareFiles(disk_root / "spare"), self._record_of)
        self.evictions = 0
        self.progress = "the log is being brought back"
        """How far a start has come, in words."""
        self._node = NodeControl.create(self.memory_directory, broker_id, self.incarnation)
        self._clock = clock
        self._retention_seconds = retention_seconds
        self._sealed: deque[tuple[PartitionLog, Segment]] = deque()
        self._room = asyncio.Event()
        self._wanted = 0
        """The largest segment that somebody waits for."""
        self._moved = True
        """Segments were sealed, asked for or waited for since the last look."""
        self._rest: asyncio.Future[None] | None = None
        """What the ticker waits for while nothing moves; `_hurry` ends it."""
        self._ticker: asyncio.Task[None] | None = None
        self._housekeeper: asyncio.Task[None] | None = None
        self._dropping: set[asyncio.Task[None]] = set()
        """Each deletes a backup's oldest files, once the log start behind them is saved."""
        self._reserve = min(memory_budget // 4, 256 * 1024 * 1024)

    # Life

    def start(self) -> None:
        self.write_behind.start()
        self._ticker = asyncio.create_task(self._tick(), name="log-ticker")
        self._housekeeper = asyncio.create_task(self._keep_house(), name="log-housekeeper")

    async def stop(self) -> None:
        """Drain write-behind, note that the end was clean, and leave the memory for the next process."""
        for task in (self._housekeeper, self._ticker, *self._dropping):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for partition in self.logs.values():
            if partition.unflushed and not partition.dirty:
                partition.dirty = True
                self.write_behind.note_dirty(partition)
        try:
            await asyncio.wait_for(self.write_behind.durable(), 4.0)
            await self.write_behind.on_thread(self._close_cleanly)
        except TimeoutError:
            log.error(
                "stopping with unwritten records: %s; they are still in shared memory (%s)",
                self.write_behind.failure,
                self.memory_directory,
            )
        await self.write_behind.stop()
        self._node.retire()
        self.state.close()

    def _close_cleanly(self) -> None:
        for partition in self.logs.values():
            for segment in partition.segments:
                segment.sync()
                segment.close_file()
        # Only now, with every byte on disk: the next start needs neither a check nor a gap.
        self.state.save(
            replace(self._record_of(partition), clean_end=partition.log_end)
            for partition in self.logs.values()
            if partition.damage is None
        )

    # Partitions

    def open(self, places: Iterable[PartitionPlace], *, new: bool = False) -> list[PartitionLog]:
        """Bring partitions back, or begin `new` ones, and lead them in a new epoch. It blocks.

        If it fails half-way, what was opened is there for the next attempt.
        """
        known = {} if new else self.state.load()
        opened = []
        for place in places:
            key = (place.topic_id, place.partition)
            opened.append(self.logs[key] if key in self.logs else self._open_one(place, known.get(key)))
        self._save_opened(opened)
        return opened

    async def open_patiently(self, places: Sequence[PartitionPlace]) -> list[PartitionLog]:
        """The same at start, with a turn for others between: from disk, gigabytes take a while."""
        known = self.state.load()
        opened = []
        turn = time.monotonic()
        for place in places:
            opened.append(self._open_one(place, known.get((place.topic_id, place.partition))))
            self.progress = f"{len(opened)} of {len(places)} partitions are back"
            if time.monotonic() - turn > _WITHOUT_A_TURN:
                await asyncio.sleep(_TURN)
                turn = time.monotonic()
        self._save_opened(opened)
        return opened

    def _save_opened(self, opened: list[PartitionLog]) -> None:
        # What is damaged stays as it was saved: mended, it is the same log.
        whole = [partition for partition in opened if partition.damage is None]
        self.state.save(self._record_of(partition) for partition in whole)
        for partition in whole:
            partition.control.incarnation = self.incarnation

    def _open_one(self, place: PartitionPlace, record: PartitionRecord | None) -> PartitionLog:
        memory_directory = layout.partition_dir(self.memory_directory, place.topic_id, place.partition)
        disk_directory = self.partition_disk(place.topic, place.topic_id, place.partition)
        if record is None:
            record = PartitionRecord(place.topic_id, place.partition)
        leftovers.is_wanted_again(memory_directory, disk_directory)
        found = recover(memory_directory, disk_directory, record, self._clock())
        partition = PartitionLog(
            topic=place.topic,
            topic_id=place.topic_id,
            partition=place.partition,
            memory_directory=memory_directory,
            disk_directory=disk_directory,
            control=found.control,
            pool=self.pool,
            config=place.config,
            clock=self._clock,
            on_dirty=self.write_behind.note_dirty,
            on_sealed=self._note_sealed,
        )
        partition.log_start = found.log_start
        partition.cleaned_to = min(record.cleaned_to, found.log_end)
        partition.ceiling = record.ceiling
        partition.epochs = [EpochStart(epoch, start) for epoch, start in found.epochs]
        self.logs[(place.topic_id, place.partition)] = partition
        if found.damage is not None:
            # Nothing of it is touched: what the operator mends is found as it was.
            log.error("%s-%d is offline: %s", place.topic, place.partition, found.damage)
            partition.damage = found.damage
            return partition
        if not place.lead and not found.intact:
            # A shell until its new storage id is saved: killed before that, it would pass for the old log.
            found.control.incarnation = 0
        partition.producers = found.producers
        for segment in found.segments:
            if segment.memory is not None:
                self.pool.adopt(segment.memory, sealed=segment.sealed)
                if segment.sealed:
                    self._sealed.append((partition, segment))
        # What a replica without its memory had committed, its leader will say; the disk may have more.
        known = place.lead or not found.memory_lost
        partition.adopt(found.segments, found.log_end, found.committed if known else partition.log_start)
        if record.ceiling or partition.log_end:
            partition.ceiling = max(record.ceiling, partition.log_end) + CEILING_STEP
        epoch = max(place.leader_epoch, record.promised_epoch, found.control.promised_epoch) + 1
        partition.storage_id = record.storage_id
        if not place.lead:
            self._prepare_to_follow(partition, record, found)
            return partition
        partition.begin_epoch(epoch)
        # Nobody else has a say on a single node: all that was appended is committed, once on disk if the
        # topic wants that.
        if partition.in_memory or not found.memory_lost:
            partition.skip_to(found.skip_to)
        if partition.in_memory:
            partition.commit(partition.log_end)
        elif not partition.dirty and (partition.unflushed or partition.high_watermark < partition.log_end):
            partition.dirty = True
            self.write_behind.note_dirty(partition)
        partition.serve(self.incarnation)
        return partition

    def _prepare_to_follow(self, partition: PartitionLog, record: PartitionRecord, found: Recovered) -> None:
        """A replica in a cluster: nothing is led, cut or committed before others were asked."""
        partition.step_down()
        partition.control.promised_epoch = max(partition.control.promised_epoch, record.promised_epoch)
        partition.lost_up_to = found.skip_to
        partition.durable_end = partition.log_start  # until the disk has had its turn
        partition.ceiling = max(partition.ceiling, partition.log_end + CEILING_STEP)
        if record.storage_id == 0 or not found.intact:
            partition.storage_id = self._draw()
            if record.storage_id or partition.log_end:
                log.warning("%r lost a part of its log: it counts as a new replica", partition)
            if not found.is_prefix:
                has_beginning = record.storage_id != 0 and found.whole_to > found.log_start
                partition.lost_up_to = max(found.skip_to, found.log_end)
                try:
                    gone = partition.give_up_from(found.whole_to) if has_beginning else partition.reset(0)
                except (OSError, MemoryExhausted) as error:
                    # With the hole in it, it must not be asked how far it goes. The next start tries again.
                    partition.damage = f"a part is missing, and what is behind it could not be cut: {error}"
                    log.error("%r is offline: %s", partition, partition.damage)
                    return
                self._delete_later(gone)
        disk = partition.config.durability is Durability.DISK
        unsynced = disk and partition.durable_end < partition.log_end
        if (partition.unflushed or unsynced) and not partition.dirty:
            partition.dirty = True
            self.write_behind.note_dirty(partition)

    def partition_disk(self, topic: str, topic_id: bytes, partition: int) -> Path:
        return self.disk_directory / "topics" / f"{topic}.{topic_id.hex()}" / str(partition)

    def truncate(self, partition: PartitionLog, offset: int) -> None:
        """Cut a replica's tail; its files follow on the disk thread, before anything is written anew."""
        self._forget_snapshots(partition, offset)
        touched = partition.truncate(offset)
        cut = [s for s in touched if s in partition.segments]
        self._cut_later(cut)
        self._sealed.extend((partition, s) for s in cut if s.is_hot and (partition, s) not in self._sealed)
        self._hurry()
        self._delete_later([s for s in touched if s not in partition.segments])
        self.write_behind.save_state(partition)

    def reset(self, partition: PartitionLog, offset: int) -> None:
        self._forget_snapshots(partition, -1)
        self._delete_later(partition.reset(offset))
        self.write_behind.save_state(partition)

    def _forget_snapshots(self, partition: PartitionLog, offset: int) -> None:
        paths = {s.producers_path for s in partition.segments if s.base_offset > offset}
        self.write_behind.forget_files(paths.__contains__)

    def _cut_later(self, segments: list[Segment]) -> None:
        for segment in segments:
            self.write_behind.soon(segment.cut_file)

    def _delete_later(self, segments: list[Segment]) -> None:
        for segment in segments:
            self.write_behind.soon(partial(segment.delete_files, self.write_behind.spares))

    def _close(self, partition: PartitionLog) -> None:
        partition.close()
        # Its directory may go: a file that can't be written would be tried again for ever, before all else.
        self.write_behind.forget_files(lambda path: path.parent == partition.disk_directory)
        for segment in partition.segments:
            if segment.memory is not None:
                self.pool.retire(segment.memory)
                segment.memory = None

    async def close_partition(self, partition: PartitionLog, *, delete: bool) -> None:
        """This broker has no replica of it any more."""
        self.logs.pop((partition.topic_id, partition.partition), None)
        self._close(partition)
        self._sealed = deque(entry for entry in self._sealed if not entry[0].deleted)

        def remove() -> None:
            for segment in partition.segments:
                segment.close_file()
            if delete:
                self._remove(partition.topic, partition.topic_id, partition.partition)

        await self.write_behind.on_thread(remove)

    async def find_leftovers(self) -> dict[PartitionKey, Leftover]:
        """Partitions that have files here, or memory, and are not open."""
        look = partial(
            leftovers.find,
            self.disk_directory / "topics",
            self.memory_directory,
            self.state.load(),
            frozenset(self.logs),
        )
        return await asyncio.get_running_loop().run_in_executor(None, look)

    async def keep_leftover(self, leftover: Leftover) -> None:
        await self.write_behind.on_thread(partial(leftovers.keep, leftover))

    async def delete_leftover(self, topic: str, key: PartitionKey) -> None:
        if key not in self.logs:
            await self.write_behind.on_thread(partial(self._remove, topic, *key))

    def _remove(self, topic: str, topic_id: bytes, partition: int) -> None:
        # Its name goes first: what a crash leaves of it counts as a new replica if it is opened again.
        self.state.forget(topic_id, partition)
        shutil.rmtree(self.partition_disk(topic, topic_id, partition), ignore_errors=True)
        shutil.rmtree(layout.partition_dir(self.memory_directory, topic_id, partition), ignore_errors=True)

    def configure(self, topic_id: bytes, config: LogConfig) -> None:
        for (owner, _), partition in self.logs.items():
            if owner == topic_id:
                partition.configure(config)

    async def delete(self, topic: str, topic_id: bytes) -> None:
        """Forget a topic: readers see GONE, memory comes back, files go."""
        segments: list[Segment] = []
        for key in [key for key in self.logs if key[0] == topic_id]:
            partition = self.logs.pop(key)
            self._close(partition)
            segments += partition.segments
        self._sealed = deque(entry for entry in self._sealed if not entry[0].deleted)

        def forget() -> None:
            self.state.forget(topic_id)
            for segment in segments:
                segment.close_file()

        def remove() -> None:
            shutil.rmtree(self.disk_directory / "topics" / f"{topic}.{topic_id.hex()}", ignore_errors=True)
            shutil.rmtree(self.memory_directory / topic_id.hex(), ignore_errors=True)

        await self.write_behind.on_thread(forget)
        # Thousands of files take seconds: not on the thread that everybody's records wait for.
        await asyncio.get_running_loop().run_in_executor(None, remove)

    async def room(self, size: int, timeout: float) -> bool:
        """Wait until an append that found no room for a segment of `size` bytes is worth another try."""
        self._wanted = max(self._wanted, size)
        self._room.clear()
        self._hurry()
        try:
            await asyncio.wait_for(self._room.wait(), timeout)
        except TimeoutError:
            return False
        return True

    async def raise_ceilings(self, partitions: Iterable[PartitionLog]) -> None:
        """Reserve offsets for all of them in one round: a first request may touch a thousand."""
        for partition in partitions:
            self.write_behind.save_state(partition)
        await self.write_behind.saved()

    async def delete_records(self, partition: PartitionLog, offset: int) -> None:
        """Move the log start, on disk before it is answered."""
        await self._drop(partition, partition.advance_log_start(offset))
        await self.write_behind.saved()

    def follow_log_start(self, partition: PartitionLog, offset: int) -> None:
        """A backup's log start goes where its leader's is (rule R11)."""
        dropped = partition.advance_log_start(min(offset, partition.high_watermark))
        self.write_behind.save_state(partition)
        if dropped:
            task = asyncio.create_task(self._drop(partition, dropped))
            self._dropping.add(task)
            task.add_done_callback(self._dropping.discard)

    async def _drop(self, partition: PartitionLog, segments: list[Segment]) -> None:
        self.write_behind.save_state(partition)
        if segments:
            await self.write_behind.saved()  # the new log start is on disk before a file goes
            if partition.deleted:
                return
            taken = {segment.path for segment in partition.segments}  # the log may have begun anew meanwhile
            gone = [segment for segment in segments if segment.path not in taken]

            def remove() -> None:
                for segment in gone:
                    segment.delete_files(self.write_behind.spares)

            await self.write_behind.on_thread(remove)

    def _record_of(self, partition: PartitionLog) -> PartitionRecord:
        return PartitionRecord(
            partition.topic_id,
            partition.partition,
            partition.log_start,
            partition.ceiling,
            partition.control.promised_epoch,
            partition.cleaned_to,
            -1,
            tuple((entry.epoch, entry.start_offset) for entry in partition.epochs),
            partition.storage_id,
        )

    # Memory

    def _note_sealed(self, partition: PartitionLog, segment: Segment) -> None:
        self._sealed.append((partition, segment))
        self._hurry()
        self.write_behind.save_file(
            partition.disk_directory / f"{partition.log_end:020d}.producers", partition.producers.encode()
        )

    async def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        next_beat = loop.time()
        while True:
            now = loop.time()
            moved, self._moved = self._moved, False
            try:
                if now >= next_beat:
                    next_beat = now + HEARTBEAT
                    self._node.beat()
                    self.readers.refresh()
                self._reclaim()
                orders = self.pool.take_orders()
                if orders:
                    await self._make_spares(orders)
            except Exception:
                log.exception("reclaiming memory failed")
            if moved or self._wanted or self.pool.use.retiring:
                await asyncio.sleep(TICK)
            else:
                await self._rest_until(next_beat)

    async def _rest_until(self, time: float) -> None:
        loop = asyncio.get_running_loop()
        self._rest = loop.create_future()
        timer = loop.call_at(time, self._wake)
        try:
            await self._rest
        finally:
            timer.cancel()
            self._rest = None

    def _hurry(self) -> None:
        """Memory moves: look at it soon, and more often."""
        self._moved = True
        self._wake()

    def _wake(self) -> None:
        if self._rest is not None and not self._rest.done():
            self._rest.set_result(None)

    async def _make_spares(self, orders: list[int]) -> None:
        made = await asyncio.get_running_loop().run_in_executor(None, self.pool.make, orders)
        self.pool.deliver(orders, made)

    def _reclaim(self) -> None:
        use = self.pool.use
        if use.retiring or use.detached:
            self.pool.collect(self.readers.pins())
        short = max(self._reserve, self._wanted) - self.pool.available - self.pool.use.retiring
        kept: list[tuple[PartitionLog, Segment]] = []
        while short > 0 and self._sealed:
            partition, segment = self._sealed.popleft()
            if segment.memory is None or partition.deleted:
                continue
            if not segment.evictable:
                kept.append((partition, segment))
                if len(kept) > 64:
                    break
                continue
            short -= segment.memory.size
            partition.evict(segment)
            self.evictions += 1
        self._sealed.extendleft(reversed(kept))
        if self._wanted and self.pool.available >= self._wanted:
            self._wanted = 0
            self._room.set()

    # Slower things

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(self._retention_seconds)
            for partition in list(self.logs.values()):
                if partition.deleted or partition.damage is not None:
                    continue
                try:
                    partition.roll_if_old()
                    await self._retain(partition)
                    if wants_compaction(partition, self._clock()):
                        await compact(partition, self.write_behind, self._clock())
                    partition.producers.expire(self._clock() - PRODUCER_EXPIRY_MS)
                except Exception:
                    log.exception("housekeeping of %r failed", partition)

    async def _retain(self, partition: PartitionLog) -> None:
        """Retention by time and by size, from the old end, whole sealed segments below the watermark."""
        config = partition.config
        if not config.delete or not partition.segments or not partition.leading:
            return  # a backup follows its leader's log start
        now = self._clock()
        newest = partition.segments[-1]
        if (
            config.retention_ms >= 0
            and newest.size
            and newest.max_timestamp < now - config.retention_ms
            and partition.high_watermark == partition.log_end
        ):
            partition.roll()
        keep_from = partition.log_start
        excess = partition.size - config.retention_bytes if config.retention_bytes >= 0 else 0
        for segment in partition.segments[:-1]:
            expired = config.retention_ms >= 0 and segment.max_timestamp < now - config.retention_ms
            oversize = excess >= segment.size > 0
            if not (expired or oversize) or segment.next_offset > partition.high_watermark:
                break
            excess -= segment.size
            keep_from = segment.next_offset
        if keep_from > partition.log_start:
            following = next(
                (s.base_offset for s in partition.segments if s.base_offset >= keep_from), keep_from
            )
            await self._drop(partition, partition.advance_log_start(following))

    def totals(self) -> Mapping[str, int]:
        return {
            "partitions": len(self.logs),
            "hot_bytes": sum(partition.hot_size for partition in self.logs.values()),
            "disk_bytes": sum(partition.size for partition in self.logs.values()),
            "unflushed_bytes": sum(partition.unflushed for partition in self.logs.values()),
        }
