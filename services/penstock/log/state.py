"""What a broker must remember of each partition besides its records: a small SQLite file on its disk.

Log start, the ceiling of offsets it may have shown to anybody (rule R9), the epochs it has promised and
seen (rule R3), how far compaction got. Written by a disk thread, many partitions to a transaction.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

_SCHEMA: Final = """
create table if not exists partition_state (
  topic_id blob not null, partition integer not null,
  log_start integer not null, ceiling integer not null, promised_epoch integer not null,
  cleaned_to integer not null, clean_end integer not null, epochs text not null,
  storage_id integer not null default 0,
  primary key (topic_id, partition)
) without rowid
"""


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    topic_id: bytes
    partition: int
    log_start: int = 0
    ceiling: int = 0
    promised_epoch: int = -1
    cleaned_to: int = 0
    clean_end: int = -1
    """The log end at a clean stop; -1 while running, so that a crash is seen."""
    epochs: tuple[tuple[int, int], ...] = ()
    storage_id: int = 0
    """The name of this very log (rule R1); 0: it never had one."""


def _decode(row: tuple[Any, ...]) -> PartitionRecord:
    record = PartitionRecord(*row[:7])
    epochs = tuple((epoch, start) for epoch, start in json.loads(row[7]))
    return replace(record, epochs=epochs, storage_id=row[8])


class LocalState:
    """Called by the write-behind thread and, when partitions are opened, by the event loop. What `save` was
    given is on disk when it returns."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("pragma journal_mode=wal")
        self._connection.execute("pragma synchronous=full")
        self._connection.execute(_SCHEMA)
        columns = {row[1] for row in self._connection.execute("pragma table_info(partition_state)")}
        if "storage_id" not in columns:  # a file from before there were clusters
            self._connection.execute(
                "alter table partition_state add column storage_id integer not null default 0"
            )

    def load(self) -> dict[tuple[bytes, int], PartitionRecord]:
        rows = self._connection.execute(
            "select topic_id, partition, log_start, ceiling, promised_epoch, cleaned_to, clean_end, epochs,"
            " storage_id"
            " from partition_state"
        )
        return {(row[0], row[1]): _decode(row) for row in rows}

    def save(self, records: Iterable[PartitionRecord]) -> None:
        rows = [
            (
                record.topic_id,
                record.partition,
                record.log_start,
                record.ceiling,
                record.promised_epoch,
                record.cleaned_to,
                record.clean_end,
                json.dumps(record.epochs),
                record.storage_id,
            )
            for record in records
        ]
        if rows:
            with self._lock, self._connection:
                self._connection.execute("begin immediate")
                self._connection.executemany(
                    "insert or replace into partition_state values (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
                )

    def forget(self, topic_id: bytes, partition: int | None = None) -> None:
        with self._lock:
            self._connection.execute(
                "delete from partition_state where topic_id = ?1 and (?2 is null or partition = ?2)",
                (topic_id, partition),
            )

    def close(self) -> None:
        self._connection.close()
