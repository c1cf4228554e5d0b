"""The metadata store: a small key-value map with revisions, changed by compare-and-swap only.

One interface, so that a single node (SQLite, below) and a cluster (etcd, `etcd.py`) run the same broker.
Keys are paths, values JSON. A revision is a number that grows with every change of that key's store; 0
means the key does not exist.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from penstock.wire.errors import ErrorCode, KafkaError

_A = TypeVar("_A")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Versioned:
    key: str
    value: Any
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """Set `key` to `value` (None: delete it) if its revision is still `expected` (0: if it is new)."""

    key: str
    value: Any
    expected: int


@dataclass(frozen=True, slots=True)
class Update:
    """News from a watch, in the order of the store's revisions. `whole`: this is all there is, forget the
    rest; otherwise these keys changed. A deleted key has the value None."""

    entries: tuple[Versioned, ...]
    whole: bool = False


class Unavailable(KafkaError):
    """The store gave no answer. A swap may have happened, may still happen, or never will (rule R2)."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.request_timed_out, message)


class MetadataStore(Protocol):
    async def get(self, key: str) -> Versioned | None: ...

    async def scan(self, prefix: str) -> list[Versioned]: ...

    async def swap(self, changes: Sequence[Change]) -> bool:
        """All the changes or none; False when a revision was not the expected one.

        Raises Unavailable when the outcome is unknown.
        """
        ...

    def watch(self, prefix: str) -> AsyncGenerator[Update, None]:
        """Everything under `prefix`, then every change to it; goes on by itself after a lost connection."""
        ...

    async def close(self) -> None: ...


class SqliteMetadata:
    """The embedded store of a single node: durable when `swap` returns."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("pragma journal_mode=wal")
        self._connection.execute("pragma synchronous=full")
        self._connection.execute(
            "create table if not exists metadata"
            " (key text primary key, value text not null, revision integer not null) without rowid"
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metadata")
        self._changed = asyncio.Condition()

    async def get(self, key: str) -> Versioned | None:
        return await self._run(self._get, key)

    async def scan(self, prefix: str) -> list[Versioned]:
        return await self._run(self._scan, prefix)

    async def swap(self, changes: Sequence[Change]) -> bool:
        done = await self._run(self._swap, changes)
        async with self._changed:
            self._changed.notify_all()
        return done

    async def watch(self, prefix: str) -> AsyncGenerator[Update, None]:
        """Changes made through this object: nobody else has the file."""
        known: dict[str, Versioned] | None = None
        while True:
            async with self._changed:
                now = {entry.key: entry for entry in await self.scan(prefix)}
                while now == known:
                    await self._changed.wait()
                    now = {entry.key: entry for entry in await self.scan(prefix)}
            if known is None:
                yield Update(tuple(now.values()), whole=True)
            else:
                gone = [Versioned(key, None, 0) for key in known if key not in now]
                yield Update((*gone, *(entry for key, entry in now.items() if known.get(key) != entry)))
            known = now

    async def close(self) -> None:
        self._thread.shutdown()
        self._connection.close()

    async def _run(self, function: Callable[[_A], _R], argument: _A) -> _R:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, argument)

    def _get(self, key: str) -> Versioned | None:
        row = self._connection.execute(
            "select value, revision from metadata where key = ?", (key,)
        ).fetchone()
        return None if row is None else Versioned(key, json.loads(row[0]), row[1])

    def _scan(self, prefix: str) -> list[Versioned]:
        rows = self._connection.execute(
            "select key, value, revision from metadata where key >= ? and key < ? order by key",
            (prefix, prefix + "\U0010ffff"),
        )
        return [Versioned(key, json.loads(value), revision) for key, value, revision in rows]

    def _swap(self, changes: Sequence[Change]) -> bool:
        connection = self._connection
        connection.execute("begin immediate")
        try:
            (last,) = connection.execute("select coalesce(max(revision), 0) from metadata").fetchone()
            for change in changes:
                row = connection.execute(
                    "select revision from metadata where key = ?", (change.key,)
                ).fetchone()
                if (row[0] if row else 0) != change.expected:
                    connection.execute("rollback")
                    return False
                if change.value is None:
                    connection.execute("delete from metadata where key = ?", (change.key,))
                else:
                    connection.execute(
                        "insert or replace into metadata values (?, ?, ?)",
                        (change.key, json.dumps(change.value), last + 1),
                    )
            connection.execute("commit")
        except BaseException:
            if connection.in_transaction:
                connection.execute("rollback")
            raise
        return True
