"""A log store on temporary directories, for tests that look inside the log."""

from __future__ import annotations

import shutil
import tempfile
import threading
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from penstock.log.config import LogConfig
from penstock.log.partition import CEILING_STEP, AppendResult, PartitionLog
from penstock.log.store import LogStore, PartitionPlace
from penstock.wire import batch
from penstock.wire.records import Record, decode_records, encode_batch

NOW = 1_700_000_000_000


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


class LogRig:
    """Opens, kills (without any clean-up) and reopens the store of one broker."""

    def __init__(self, directory: Path, memory: int = 64 << 20) -> None:
        self.directory = directory
        self.memory = memory
        self.shm = Path(tempfile.mkdtemp(prefix="penstock-test-", dir="/dev/shm"))
        self.clock = Clock()
        self.topic_id = uuid.uuid4().bytes
        self.store: LogStore

    def open(
        self, configs: Mapping[str, str] | None = None, *, partitions: int = 1, lead: bool = True
    ) -> list[PartitionLog]:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.store = LogStore(
            broker_id=1,
            memory_root=self.shm,
            disk_root=self.directory,
            memory_budget=self.memory,
            clock=self.clock,
            retention_seconds=3600,
        )
        self.store.start()
        config = LogConfig.parse(configs or {})
        logs = self.store.open(
            [PartitionPlace("t", self.topic_id, index, config, -1, lead) for index in range(partitions)]
        )
        for log in logs:  # as after a first append, so that tests need not wait for the disk
            log.ceiling = max(log.ceiling, CEILING_STEP)
        self.store.state.save(self.store._record_of(log) for log in logs if log.damage is None)
        return logs

    async def crash(self) -> None:
        """What kill -9 leaves: nothing is drained, no file closed, the clean flag is not set."""
        store = self.store
        for task in (store._ticker, store._housekeeper, store.write_behind._task, *store._dropping):
            assert task is not None
            task.cancel()
        store.write_behind._thread.shutdown()
        store.state.close()

    def hold_disk(self) -> threading.Event:
        """The disk thread does nothing more until this is set, or the test has failed long ago."""
        go_on = threading.Event()
        self.store.write_behind.soon(partial(go_on.wait, 10))
        return go_on

    def lose_memory(self) -> None:
        shutil.rmtree(self.shm)
        self.shm.mkdir()

    def close(self) -> None:
        shutil.rmtree(self.shm, ignore_errors=True)


def put(
    log: PartitionLog,
    values: list[bytes],
    *,
    keys: list[bytes | None] | None = None,
    timestamp: int = NOW,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> AppendResult:
    """Append one batch the way the produce handler does."""
    keys = keys or [None] * len(values)
    producer_id, epoch, sequence = producer
    encoded = encode_batch(
        [Record(at, timestamp, key, value) for at, (key, value) in enumerate(zip(keys, values, strict=True))],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return log.append(batch.check_produced(memoryview(encoded), 1 << 30), memoryview(encoded))


def take(log: PartitionLog, epoch: int, count: int, value: bytes = b"x") -> None:
    """What a backup does with `count` batches of one record each that its leader of `epoch` sends."""
    for _ in range(count):
        record = Record(log.log_end, NOW, None, value)
        log.append_run(memoryview(encode_batch([record], base_offset=log.log_end, leader_epoch=epoch)))


def everything(log: PartitionLog) -> list[Record]:
    """All committed records, hot or cold, as a consumer would get them."""
    found: list[Record] = []
    offset = log.log_start
    while True:
        part = log.read(offset, 1 << 20)
        if part is None:
            return found
        segment = part.segment
        cold = part.view is None
        chunk = segment.read_cold(part.offset, 1 << 20, segment.committed) if cold else bytes(part.view)
        if not chunk:
            return found
        for position, header in batch.walk(chunk, 0, len(chunk)):
            if header.record_count:
                records = decode_records(chunk[position : position + header.size])
                found += [record for record in records if record.offset >= offset]
            offset = header.next_offset
