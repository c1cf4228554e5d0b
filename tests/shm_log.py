"""A broker's shared memory without a broker: the real log classes, driven step by step by a test."""

from __future__ import annotations

from pathlib import Path

from penstock.log.config import LogConfig
from penstock.log.partition import PartitionLog
from penstock.log.pool import SegmentPool
from penstock.log.segment import Segment
from penstock.shm import layout
from penstock.shm.control import NodeControl, PartitionControl
from penstock.shm.cursors import ReaderSlot, _Reader
from penstock.shm.places import Place, Start
from penstock.shm.reader import LogReader
from penstock.wire import batch
from penstock.wire.records import Record, encode_batch

TOPIC_ID = bytes(range(16))
INCARNATION = 77
START_TIME = 1_700_000_000_000
PinKey = tuple[bytes, int, int]


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class MemoryLog:
    """One node with partitions in memory. Records are numbered: value and offset agree."""

    def __init__(
        self,
        root: Path,
        *,
        partitions: int = 1,
        budget: int = 1 << 20,
        detached: int | None = None,
        segment_bytes: int = 32 * 1024,
        configs: dict[str, str] | None = None,
    ) -> None:
        self.directory = layout.broker_dir(root / "shm", 1)
        self.directory.mkdir(parents=True)
        (self.directory / layout.CURSOR_DIR).mkdir()
        self.clock = Clock()
        self.node = NodeControl.create(self.directory, 1, INCARNATION)
        self.pool = SegmentPool(self.directory / "pool", budget, detached, clock=self.clock)
        self.places = [Place("t", TOPIC_ID, index) for index in range(partitions)]
        self.logs = [
            self._open(root / "disk", place, {"segment.bytes": str(segment_bytes), **(configs or {})})
            for place in self.places
        ]
        self.log = self.logs[0]
        self.place = self.places[0]

    def _open(self, disk: Path, place: Place, configs: dict[str, str]) -> PartitionLog:
        directory = layout.partition_dir(self.directory, place.topic_id, place.partition)
        directory.mkdir(parents=True)
        log = PartitionLog(
            topic=place.topic,
            topic_id=place.topic_id,
            partition=place.partition,
            memory_directory=directory,
            disk_directory=disk / str(place.partition),
            control=PartitionControl.create(directory, place.topic_id, place.partition),
            pool=self.pool,
            config=LogConfig.parse(configs),
            clock=lambda: START_TIME,
            on_dirty=lambda _: None,
            on_sealed=lambda *_: None,
        )
        log.ceiling = 1 << 40
        log.begin_epoch(1)
        log.serve(INCARNATION)
        return log

    def append(self, batches: int = 1, *, records: int = 10, size: int = 100, partition: int = 0) -> None:
        """Batches of numbered records, one millisecond apart."""
        log = self.logs[partition]
        for _ in range(batches):
            content = [
                Record(
                    offset,
                    START_TIME + log.log_end + offset,
                    None,
                    str(log.log_end + offset).encode().ljust(size, b"."),
                )
                for offset in range(records)
            ]
            encoded = encode_batch(content, base_offset=0)
            log.append(batch.check_produced(encoded, 1 << 20), encoded)

    def reader(self, start: Start, **options: object) -> LogReader:
        return LogReader(self.directory, dict.fromkeys(self.places, start), **options)  # type: ignore[arg-type]

    # The broker's side of recycling, a step at a time

    def evict(self, count: int = 1) -> list[Segment]:
        """Take the memory of the oldest hot segments, as if they were on disk."""
        hot = [segment for segment in self.log.segments if segment.is_hot and segment.sealed][:count]
        assert len(hot) == count
        for segment in hot:
            segment.flushed = segment.size
            self.log.evict(segment)
        return hot

    def collect(self, pins: set[PinKey]) -> None:
        self.clock.now += 1
        self.pool.collect(pins)

    def slots(self) -> list[ReaderSlot]:
        """What readers in this process publish (to the registry they look dead: own locks don't show)."""
        paths = (self.directory / layout.CURSOR_DIR).glob(f"*{layout.CURSOR_SUFFIX}")
        return [slot for path in paths for slot in _Reader(path).read()]

    def pins(self) -> set[PinKey]:
        return {(slot.topic_id, slot.partition, slot.pinned) for slot in self.slots() if slot.pinned >= 0}
