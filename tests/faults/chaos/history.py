"""What clients did and saw, one JSON list per line, in the order it happened to each of them.

    ["acked",     t, producer, partition, offset, key, number]        a record was acknowledged
    ["failed",    t, producer, key, number, why]                      it is not known whether it is there
    ["sent",      t, producer, key, count]                            numbers 0..count-1 were sent
    ["begin",     t, reader, partition, offset]                       reads from here on
    ["read",      t, reader, partition, offset, epoch, [[producer, key, number], ...]]     one after the other
    ["end",       t, reader, partition, offset]                       read up to here when all was over
    ["error",     t, client, why]                                     something no application should see
    ["committing", t, group, partition, offset], ["committed", ...], ["resumed", ...]      a group's offsets
    ["led",       t, broker, partition, epoch]                        a broker began to lead
    ["fault", t, round, what], ["healed", t, round], ["well", t, round]

t is the machine's monotonic clock, the same for all processes.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Event = list[Any]


class History:
    """Append only, from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)  # whole lines, at once: others follow the file
        self._lock = threading.Lock()

    def add(self, kind: str, *rest: Any) -> None:
        line = json.dumps([kind, round(time.monotonic(), 4), *rest], separators=(",", ":"))
        with self._lock:
            self._file.write(line + "\n")

    def close(self) -> None:
        self._file.close()


def read(directory: Path) -> Iterator[Event]:
    """Everything that was written into a directory, file by file."""
    for path in sorted(directory.glob("*.jsonl")):
        with path.open() as lines:
            for line in lines:
                yield json.loads(line)


def encode(producer: int, key: int, number: int, padding: int) -> bytes:
    """A record's value: says who sent it, for which key, as which one."""
    return b"%d %d %d " % (producer, key, number) + b"." * padding


def decode(value: bytes) -> list[int]:
    producer, key, number, _ = value.split(b" ", 3)
    return [int(producer), int(key), int(number)]
