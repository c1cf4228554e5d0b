"""One partition's log: append, commit, read, and the segments it is made of.

Owned by the broker's event loop; nothing here blocks. The leader's handler appends; whoever decides
what is committed (at once, after the disk, after the replicas) calls `commit`, which stores the commit
word that readers in shared memory watch and wakes those that wait here. Every change of what a reader
may see goes through this class.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from penstock.log.config import Durability, LogConfig, TimestampType
from penstock.log.pool import SMALLEST, MemoryExhausted, SegmentPool
from penstock.log.producers import ProducerTable
from penstock.log.recovery import rebuild_producers
from penstock.log.segment import LOG_SUFFIX, Segment
from penstock.shm import layout
from penstock.shm.control import PartitionControl
from penstock.shm.layout import PartitionState
from penstock.shm.memory import SegmentMemory
from penstock.wire import batch
from penstock.wire.batch import BatchHeader, Buffer
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.records import encode_batch

CEILING_STEP: Final = 1 << 22
"""How far ahead of the log's end offsets are reserved on disk: a few seconds at full speed."""
GAP_GRACE_MS: Final = 10_000
"""How long after a refusal a producer's gap may come of it: requests that were on their way behind it."""
COMMITTED: Final = ErrorCode.none
_PLACES_REMEMBERED: Final = 64
_APPEND: Final = PartitionControl.APPEND
_COMMIT: Final = PartitionControl.COMMIT
_PROMISED: Final = layout.PART_PROMISED // layout.WORD


class CeilingReached(Exception):
    """The next offset is above what was promised to disk (rule R9); the store raises it and goes on."""


class WouldLoseCommitted(Exception):
    """A truncation below the high watermark: somebody elected a leader without committed records."""


class AppendResult:
    __slots__ = ("append_time", "base_offset", "duplicate", "next_offset")

    def __init__(self, base_offset: int, next_offset: int, append_time: int, duplicate: bool) -> None:
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.append_time = append_time
        self.duplicate = duplicate


class Awaiting:
    """One append whose end somebody waits for; `PartitionLog.when_settled` calls it, once."""

    __slots__ = ("offset", "term")

    def __init__(self, offset: int, term: int) -> None:
        self.offset = offset
        self.term = term

    def settled(self, code: ErrorCode) -> None:
        raise NotImplementedError


class Listener:
    """Who brings others what is appended here."""

    __slots__ = ()

    def on_append(self) -> None:
        raise NotImplementedError


class _Appended:
    """Appended and not committed yet: where it ends, as an offset and in its segment."""

    __slots__ = ("end", "position", "segment")

    def __init__(self, end: int, segment: Segment, position: int) -> None:
        self.end = end
        self.segment = segment
        self.position = position


class Slice(NamedTuple):
    """A readable run of batches in one segment. `view` is None when they are on disk only."""

    segment: Segment
    view: memoryview | None
    offset: int
    next_offset: int
    """Where the next read goes on; -1 while that is known to the disk only."""


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class PartitionLog:
    """See the module. `on_dirty` is told once when there are bytes to write behind."""

    def __init__(
        self,
        *,
        topic: str,
        topic_id: bytes,
        partition: int,
        memory_directory: Path,
        disk_directory: Path,
        control: PartitionControl,
        pool: SegmentPool,
        config: LogConfig,
        clock: Callable[[], int],
        on_dirty: Callable[[PartitionLog], None],
        on_sealed: Callable[[PartitionLog, Segment], None],
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.memory_directory = memory_directory
        self.disk_directory = disk_directory
        self.control = control
        self._words = control.words
        self.configure(config)
        self.segments: list[Segment] = []
        self._bases: list[int] = []
        self.log_start = 0
        self.log_end = 0
        self.high_watermark = 0
        self.ceiling = 0
        self.leader_epoch = 0
        self.epoch_start = 0
        """Where this leader's epoch begins: until that is committed, "latest" can't be told (rule R8)."""
        self.term = 0
        """Raised whenever leadership ends: what was appended before must not be answered after (rule R4)."""
        self.epochs: list[EpochStart] = []
        self.cleaned_to = 0
        self.dense_from = 0
        """From here on every offset has its record, `cleaned_to` apart. What was there before this process
        is not looked at; whoever appends a batch without records, or a marker, moves it behind that."""
        self.producers = ProducerTable()
        self.replicated = False
        """True while commits wait for others; then append never commits by itself."""
        self.leading = False
        """Whether this broker may serve it: it leads, and nothing is wrong with the log."""
        self.short_of_replicas = False
        """True while fewer are in sync than min.insync.replicas: acks=all is refused (rule R6)."""
        self.gaps_excused_until = 0
        """Until then (ms) a gap in a producer's sequence gets "try again"; see `excuse_gaps`."""
        self.storage_id = 0
        """Names this very log: another one after losing memory or disk (rule R1)."""
        self.lost_up_to = 0
        """Where offsets go on if this log is all there is and its memory was lost (rule R9)."""
        self.durable_end = 0
        """How far the log is on disk for certain; kept up only with `durability=disk`."""
        self._syncing_to = 0
        """How far it will be when the disk is done with what it has now; a truncation takes this back too."""
        self.listener: Listener | None = None
        """Told of every append that others have to get (`replicated`)."""
        self.on_synced: Callable[[PartitionLog], None] | None = None
        """Told when `durable_end` moved, if that is not all that a commit needs."""
        self.damage: str | None = None
        """Why this partition can't be served, with what to do about it."""
        self.dirty = False
        self.deleted = False
        self.records_in = 0
        self.bytes_in = 0
        self.bytes_replicated = 0
        self.records_out = 0
        self.bytes_out = 0
        self._pool = pool
        self._clock = clock
        self._on_dirty = on_dirty
        self._on_sealed = on_sealed
        self._pending: list[_Appended] = []
        self._places: OrderedDict[int, tuple[Segment, int]] = OrderedDict()
        self._waiters: list[Callable[[], None]] = []
        self._awaiting: list[Awaiting] = []

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}"

    def configure(self, config: LogConfig) -> None:
        """Take new settings, and what the append path needs of them in the quickest form."""
        self.config = config
        self._stamps_time = config.timestamp_type is TimestampType.LOG_APPEND_TIME
        self.in_memory = config.durability is Durability.MEMORY
        """Whether a record counts as soon as it is in memory, or only when it is on disk."""
        self.compacted = config.compact
        self.max_batch = config.max_message_bytes
        self.min_insync_replicas = config.min_insync_replicas

    # Writing

    def append(self, header: BatchHeader, records: Buffer) -> AppendResult:
        """Append one checked batch.

        Raises KafkaError for a sequence that doesn't fit, MemoryExhausted and CeilingReached when
        there is no room yet; then nothing has changed and the same call may be made again.
        """
        idempotent = header.producer_id != batch.NO_PRODUCER
        if idempotent:
            if self.gaps_excused_until and self._is_early(header):
                raise KafkaError(ErrorCode.not_leader_or_follower, "the batch before was refused: in order")
            earlier = self.producers.find_duplicate(header)
            if earlier is not None:
                return AppendResult(
                    earlier.base_offset, earlier.base_offset + header.last_offset_delta + 1, -1, True
                )
        base = self.log_end
        end = base + header.last_offset_delta + 1
        if end > self.ceiling:
            raise CeilingReached
        segment = self.segments[-1] if self.segments else None
        size = len(records)
        if segment is None or segment.room < size:
            segment = self._roll(size)
        append_time = -1
        max_timestamp = header.max_timestamp
        if self._stamps_time:
            append_time = max_timestamp = self._clock()
            records = bytearray(records)
            batch.stamp_append_time(records, append_time)
        segment.append(records, base, self.leader_epoch, end, max_timestamp)
        self.log_end = end
        words = self._words
        words[_APPEND] = end
        if idempotent:
            self.producers.record(header, base, self._clock())
        self.records_in += header.record_count
        self.bytes_in += size
        if self.in_memory and not self.replicated:
            segment.committed = segment.size
            self.high_watermark = end
            words[_COMMIT] = end
            if self._waiters or self._awaiting:
                self.wake()
        else:
            self._pending.append(_Appended(end, segment, segment.size))
            if self.listener is not None:
                self.listener.on_append()
        if not self.dirty:
            self.dirty = True
            self._on_dirty(self)
        return AppendResult(base, end, append_time, False)

    def append_run(self, run: memoryview) -> bool:
        """Append whole batches as their leader has them, offsets, epochs and all; True if an epoch began.

        Raises MemoryExhausted with nothing changed, ValueError for bytes that don't go on from here.
        """
        size = len(run)
        headers = batch.read_run(run)
        end = self.log_end
        dense_from = self.dense_from
        for header in headers:
            if header.base_offset < end:
                raise ValueError(f"{self}: a batch at {header.base_offset} behind {end}")
            if header.base_offset > end:
                dense_from = header.base_offset
            end = header.next_offset
        segment = self.segments[-1] if self.segments else None
        if segment is None or segment.room < size:
            segment = self._roll(size)
        segment.extend(run, headers)
        self.dense_from = dense_from
        self.log_end = end
        self._words[_APPEND] = end
        self._pending.append(_Appended(end, segment, segment.size))
        began = False
        last_epoch = self.epochs[-1].epoch if self.epochs else -1
        for header in headers:
            if header.is_control or header.record_count <= header.last_offset_delta:
                self.dense_from = header.next_offset
            if header.leader_epoch > last_epoch:
                last_epoch = header.leader_epoch
                self.epochs.append(EpochStart(last_epoch, header.base_offset))
                began = True
            if header.producer_id != batch.NO_PRODUCER and not header.is_control:
                self.producers.record(header, header.base_offset, self._clock())
        self.bytes_replicated += size
        if not self.dirty:
            self.dirty = True
            self._on_dirty(self)
        return began

    def syncing(self) -> None:
        """All that is here now is on its way to disk (`durability=disk`)."""
        self._syncing_to = self.log_end

    def synced(self) -> None:
        """It is there for certain, unless it was cut off meanwhile."""
        self.durable_end = max(self.durable_end, self._syncing_to)
        if self.on_synced is not None:
            self.on_synced(self)
        else:
            self.commit(self.durable_end)

    def commit_all(self) -> None:
        """Nobody else has a say: what was appended is committed, once on disk if the topic wants that."""
        self.commit(self.log_end if self.in_memory else self.durable_end)

    def truncate(self, offset: int) -> list[Segment]:
        """Cut the log to end at `offset`, a batch boundary, and go on in a new segment (rule S2).

        Producers' state goes back with it (rule R5). Returns the segments that are gone and, last, the
        one that was cut, whose files are still to be dealt with. Raises MemoryExhausted, or OSError if a file
        can't be read that has to be cut or tells of producers, with nothing changed.
        """
        if offset < self.high_watermark:
            raise WouldLoseCommitted(f"{self}: asked to cut at {offset}, committed is {self.high_watermark}")
        if offset >= self.log_end:
            return []
        segment = next((s for s in reversed(self.segments) if s.base_offset < offset < s.next_offset), None)
        position = 0
        if segment is not None:
            position = segment.position_of(offset) if segment.is_hot else segment.position_on_disk(offset)
        # Before anything is cut: it reads files, and may fail.
        kept = [each for each in self.segments if each.base_offset < offset]
        producers = rebuild_producers(kept, self._clock(), offset)
        memory = self._pool.acquire(SMALLEST - layout.SEGMENT_HEADER)
        touched = []
        while self.segments and self.segments[-1].base_offset >= offset:
            touched.append(self._drop_newest())
        if segment is not None:
            if position == 0:
                touched.append(self._drop_newest())
            else:
                segment.cut(position, offset)
                if segment.memory is not None:
                    self._pool.sealed(segment.memory)
                touched.append(segment)
        self._places.clear()
        self._pending = [entry for entry in self._pending if entry.end <= offset]
        reached = self._pending[-1].end if self._pending else self.high_watermark
        if reached < offset and self.segments:
            self._pending.append(_Appended(offset, self.segments[-1], self.segments[-1].size))
        while self.epochs and self.epochs[-1].start_offset >= offset:
            self.epochs.pop()
        self.log_end = offset
        self.durable_end = min(self.durable_end, offset)
        self._syncing_to = min(self._syncing_to, offset)
        self.cleaned_to = min(self.cleaned_to, offset)
        self.dense_from = min(self.dense_from, offset)
        self.control.words[_APPEND] = offset
        self.producers = producers
        self._begin_after_cut(memory)
        return touched

    def give_up_from(self, offset: int) -> list[Segment]:
        """Not all that was behind `offset` is here: cut the rest, committed or not. It is another log then.
        Returns the segments that are gone, whose files are still to be deleted."""
        committed = self.high_watermark
        self.high_watermark = self.control.words[_COMMIT] = min(committed, offset)
        try:
            return self.truncate(offset)
        except BaseException:
            self.high_watermark = self.control.words[_COMMIT] = committed
            raise

    def reset(self, offset: int) -> list[Segment]:
        """Forget everything and begin at `offset`, as a copy of a log that has nothing older."""
        memory = self._pool.acquire(SMALLEST - layout.SEGMENT_HEADER)
        dropped = []
        while self.segments:
            dropped.append(self._drop_newest())
        self._places.clear()
        self._pending.clear()
        self.epochs.clear()
        self.producers = ProducerTable()
        self.log_start = self.log_end = self.high_watermark = offset
        self.durable_end = self.cleaned_to = self.dense_from = offset
        self._syncing_to = min(self._syncing_to, offset)
        self.control.log_start = offset
        self.control.words[_APPEND] = offset
        self.control.words[_COMMIT] = offset
        self._begin_after_cut(memory)
        return dropped

    def commit(self, offset: int) -> None:
        """Everything below `offset` may be read from now on. Never goes back."""
        pending = self._pending
        reached = 0
        for entry in pending:
            if entry.end > offset:
                break
            entry.segment.committed = entry.position
            reached += 1
        if reached:
            end = self.high_watermark = pending[reached - 1].end
            if reached == len(pending):
                self._pending = []
            else:
                del pending[:reached]
            self._words[_COMMIT] = end
            if self._waiters or self._awaiting:
                self.wake()

    def commit_within(self, offset: int) -> None:
        """Up to `offset`, a batch's end, though it lies inside a run that came whole, or a segment that was
        found at a restart: `commit` goes by those."""
        if not self._pending or not self.high_watermark < offset < self._pending[0].end:
            return
        segment = self._pending[0].segment
        if segment.is_hot:
            segment.committed = segment.position_of(offset)
            self.high_watermark = offset
            self._words[_COMMIT] = offset
            self.wake()

    def skip_to(self, offset: int) -> None:
        """Leave out offsets up to `offset`, with an empty batch over the gap that readers step across."""
        while self.log_end < offset:
            delta = min(offset - self.log_end, 1 << 31) - 1
            filler = encode_batch([], base_offset=self.log_end, last_offset_delta=delta)
            self.append(batch.read_header(filler), filler)
            self.dense_from = self.log_end

    def roll_if_old(self) -> None:
        """Seal the newest segment once it has its age (`segment.ms`)."""
        newest = self.segments[-1] if self.segments else None
        if newest is not None and self._clock() - newest.created_ms > self.config.segment_ms:
            self.roll()

    def _roll(self, need: int) -> Segment:
        """A new newest segment with room for `need` bytes; the old one is sealed after it exists."""
        previous = self.segments[-1] if self.segments else None
        wanted = SMALLEST
        if previous is not None and previous.memory is not None:
            held = previous.memory.size
            wanted = min(self._pool.share(held if previous.memory.is_open else 0), held * 2)
        wanted = min(wanted, self.config.segment_bytes)
        # A power of two is meant to be the whole file, header included.
        memory = self._pool.acquire(max(need, wanted - layout.SEGMENT_HEADER))
        if previous is not None and previous.size == 0:
            # Too small for this batch, and the new one will have its name.
            self.segments.pop()
            self._bases.pop()
            self._release(previous)
            previous = None
        segment = self._begin_segment(memory)
        if previous is not None and not previous.sealed:
            previous.seal(segment.base_offset)
            if previous.memory is not None:
                self._pool.sealed(previous.memory)
            self._on_sealed(self, previous)
            if not self.dirty:  # the sealed segment's index is still to be written
                self.dirty = True
                self._on_dirty(self)
        return segment

    def _begin_segment(self, memory: SegmentMemory) -> Segment:
        try:
            memory.assign(
                self.memory_directory / layout.segment_name(self.log_end),
                self.topic_id,
                self.partition,
                self.log_end,
            )
        except OSError as error:
            self._pool.give_back(memory)
            raise self._pool.exhausted(memory.size, str(error)) from None
        segment = Segment(
            self.disk_directory / f"{self.log_end:020d}{LOG_SUFFIX}", self.log_end, memory, self._clock()
        )
        self.control.newest_base = segment.base_offset
        if self.control.oldest_base < 0:
            self.control.oldest_base = segment.base_offset
        self.segments.append(segment)
        self._bases.append(segment.base_offset)
        return segment

    def _begin_after_cut(self, memory: SegmentMemory) -> None:
        """Nothing brings back what was cut, and its files have to follow: without a segment to go on in, the
        next append makes one."""
        with contextlib.suppress(MemoryExhausted):
            self._begin_segment(memory)
        self._note_hot()

    def roll(self) -> None:
        """Seal the newest segment, so that retention and compaction can have it."""
        if self.segments and self.segments[-1].size > 0:
            self._roll(0)

    # Reading

    def check_offset(self, offset: int) -> None:
        if not self.log_start <= offset <= self.log_end:
            raise KafkaError(
                ErrorCode.offset_out_of_range, f"{self} has {self.log_start}..{self.high_watermark}"
            )

    def read(self, offset: int, limit: int) -> Slice | None:
        """Committed batches from the one that holds `offset` on; None when there is nothing yet."""
        self.check_offset(offset)
        if offset >= self.high_watermark:
            return None
        place = self._places.get(offset)
        if place is not None and place[0].is_hot and place[1] < place[0].committed:
            segment, start = place  # else the log went on in the next segment
        else:
            found = self._segment_for(offset)
            if found is None:
                return None
            segment = found
            if not segment.is_hot:
                return Slice(segment, None, max(offset, segment.base_offset), -1)
            start = segment.position_of(offset) if offset > segment.base_offset else 0
        if segment.committed - start <= limit:
            end = segment.committed
            next_offset = min(segment.next_offset, self.high_watermark)
        else:
            end, next_offset = segment.end_within(start, limit)
        if end <= start:
            return None
        if end < segment.committed or not segment.sealed:
            self._remember(next_offset, segment, end)
        return Slice(segment, segment.bytes_between(start, end), offset, next_offset)

    def _remember(self, offset: int, segment: Segment, position: int) -> None:
        """A consumer that reads on will ask for this very offset next."""
        self._places[offset] = (segment, position)
        if len(self._places) > _PLACES_REMEMBERED:
            self._places.popitem(last=False)

    def _segment_for(self, offset: int) -> Segment | None:
        """The segment that holds `offset`, or the next one that has anything above it."""
        at = max(0, bisect_right(self._bases, offset) - 1)
        while at < len(self.segments):
            segment = self.segments[at]
            if offset < segment.next_offset and segment.committed > 0:
                return segment
            at += 1
        return None

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake` at the next commit (or when the log goes away). Once."""
        self._waiters.append(wake)

    def stop_waiting(self, wake: Callable[[], None]) -> None:
        if wake in self._waiters:
            self._waiters.remove(wake)

    def fate(self, offset: int, term: int) -> ErrorCode | None:
        """What became of an append that ends at `offset`: `none` once it is committed, the error that its
        producer gets when that can't be, or not now; None while it is open."""
        if self.deleted:
            return ErrorCode.unknown_topic_or_partition
        if self.term != term:
            return ErrorCode.not_leader_or_follower  # whatever is at `offset` now may be somebody else's
        if self.high_watermark >= offset:
            return COMMITTED
        if self.short_of_replicas:
            return ErrorCode.not_enough_replicas_after_append
        return None

    def when_settled(self, awaiting: Awaiting) -> None:
        """Tell it as soon as its fate is known. What is told must not append."""
        self._awaiting.append(awaiting)

    def stop_awaiting(self, awaiting: Awaiting) -> None:
        if awaiting in self._awaiting:
            self._awaiting.remove(awaiting)

    def wake(self) -> None:
        while self._awaiting:
            first = self._awaiting[0]
            code = self.fate(first.offset, first.term)
            if code is None:
                break  # those behind it were appended later
            self._awaiting.pop(0)
            first.settled(code)
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            wake()

    # Epochs

    def begin_epoch(self, epoch: int) -> None:
        """Append at `epoch` from now on; it is written down before anything is done under it (rule R3)."""
        self.control.promised_epoch = max(epoch, self.control.promised_epoch)
        self.leader_epoch = epoch
        self.control.leader_epoch = epoch
        self.epoch_start = self.log_end
        if not self.epochs or self.epochs[-1].epoch < epoch:
            self.epochs.append(EpochStart(epoch, self.log_end))

    def serve(self, incarnation: int) -> None:
        """Let readers in. Until this was done once, recovery takes the control block for an empty shell."""
        self.control.incarnation = incarnation
        self.control.state = PartitionState.LIVE
        self.leading = self.damage is None

    def excuse_gaps(self) -> None:
        """A batch was refused, to be retried, and the ones behind it may be here before it is again.

        "Out of order" makes librdkafka begin a new producer epoch, in which it sends again whatever has no
        answer yet, on other partitions too: what was written there is then in the log twice.
        """
        self.gaps_excused_until = self._clock() + GAP_GRACE_MS

    def _is_early(self, header: BatchHeader) -> bool:
        if self._clock() >= self.gaps_excused_until:
            self.gaps_excused_until = 0
            return False
        return self.producers.is_early(header)

    @property
    def promised_epoch(self) -> int:
        return self._words[_PROMISED]

    def promise(self, epoch: int) -> bool:
        """Refuse every lower epoch from now on (rule R3); False if a higher one was promised already."""
        if epoch < self.control.promised_epoch:
            return False
        self.control.promised_epoch = epoch
        return True

    def step_down(self) -> None:
        """Another broker leads, or may: readers here are told, and those who wait for a commit."""
        self.leading = False
        self.term += 1
        self.replicated = True
        self.listener = None
        if self.control.state is not PartitionState.GONE:
            self.control.state = PartitionState.FENCED
        self.wake()

    def end_offset_for_epoch(self, epoch: int) -> EpochStart:
        """The largest epoch up to `epoch`, and where the one after it begins; (-1, -1) if unknown."""
        answer = EpochStart(-1, -1)
        for at, entry in enumerate(self.epochs):
            if entry.epoch > epoch:
                break
            following = self.epochs[at + 1].start_offset if at + 1 < len(self.epochs) else self.log_end
            answer = EpochStart(entry.epoch, following)
        return answer

    # The old end

    def advance_log_start(self, offset: int) -> list[Segment]:
        """Nothing below `offset` is readable from now on; returns the segments that hold nothing else."""
        if offset <= self.log_start:
            return []
        self.log_start = offset
        self.control.log_start = offset
        dropped = []
        while len(self.segments) > 1 and self.segments[1].base_offset <= offset and self.segments[0].sealed:
            dropped.append(self._drop_oldest())
        self._note_hot()
        return dropped

    def _drop_newest(self) -> Segment:
        segment = self.segments.pop()
        self._bases.pop()
        self._release(segment)
        return segment

    def _drop_oldest(self) -> Segment:
        segment = self.segments.pop(0)
        self._bases.pop(0)
        self._release(segment)
        return segment

    def evict(self, segment: Segment) -> None:
        """Let a segment's memory go; it is on disk."""
        assert segment.evictable
        self._release(segment)
        self._note_hot()

    def replace(self, old: Segment, new: Segment | None) -> None:
        """Put a compacted segment, or nothing, in the place of `old`."""
        at = self.segments.index(old)
        self._release(old)
        if new is None:
            del self.segments[at]
            del self._bases[at]
        else:
            self.segments[at] = new
        self._note_hot()

    def _release(self, segment: Segment) -> None:
        memory, segment.memory = segment.memory, None
        if memory is not None:
            self._pool.retire(memory)
        for offset in [offset for offset, place in self._places.items() if place[0] is segment]:
            del self._places[offset]

    def _note_hot(self) -> None:
        """Where memory begins and ends, for readers and for the next process."""
        hot = next((segment for segment in self.segments if segment.is_hot), None)
        self.control.oldest_base = hot.base_offset if hot else -1
        newest = self.segments[-1] if self.segments else None
        self.control.newest_base = newest.base_offset if newest is not None and newest.is_hot else -1

    def adopt(self, segments: list[Segment], log_end: int, committed: int) -> None:
        """Take over what recovery found. What is not committed yet waits for `commit` as after an append."""
        self.log_end = self.dense_from = log_end
        self.high_watermark = min(committed, log_end)
        for segment in segments:
            if segment.next_offset <= self.high_watermark:
                segment.committed = segment.size
            else:
                segment.committed = segment.position_of(self.high_watermark) if segment.is_hot else 0
                self._pending.append(_Appended(segment.next_offset, segment, segment.size))
        self.segments = segments
        self._bases = [segment.base_offset for segment in segments]
        self._note_hot()
        self.control.log_start = self.log_start
        self.control.words[_APPEND] = self.log_end
        self.control.words[_COMMIT] = self.high_watermark

    def close(self) -> None:
        """The log is gone or goes: wake those who wait, show readers that this is over."""
        self.deleted = True
        self.leading = False
        self.control.state = PartitionState.GONE
        self.wake()

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def hot_size(self) -> int:
        return sum(segment.memory.size for segment in self.segments if segment.memory is not None)

    @property
    def unflushed(self) -> int:
        """Bytes that write-behind still has to copy."""
        total = 0
        for segment in reversed(self.segments):
            if segment.flushed == segment.size > 0:
                break
            total += segment.size - segment.flushed
        return total
