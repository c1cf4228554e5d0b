"""The reader's vocabulary: which partition, from where, and every way in which reading can be interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple


class Place(NamedTuple):
    """A partition, by the id that names its directory; the topic's name is for people."""

    topic: str
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        return f"{self.topic or self.topic_id.hex()}-{self.partition}"


class Edge(Enum):
    EARLIEST = "earliest"
    """The log's first record, in memory or not."""
    LATEST = "latest"
    """What is committed after the reader attached."""


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record in memory with this timestamp (ms) or a later one; the end if there is none."""

    milliseconds: int


Start = int | Edge | AtTime


class Interrupted(Exception):
    """Reading can't go on as it did. `offset` is the next one to read of `place`."""

    def __init__(self, place: Place, offset: int, reason: str) -> None:
        super().__init__(f"{place} at offset {offset}: {reason}")
        self.place = place
        self.offset = offset


class NotInMemory(Interrupted):
    """The records at `offset` must be pulled: they are on disk only, or (below the log start) nowhere."""


class Overwritten(NotInMemory):
    """What was handed out in place from `offset` on was overwritten while it was out: it must not count."""


class Fenced(Interrupted):
    """This memory is not that of a leader under the broker's current incarnation."""


class Gone(Interrupted):
    """The partition was deleted."""


class BrokerRestarted(Interrupted):
    """The broker that this reader attached to is another process now."""


class BrokerGone(Interrupted):
    """The broker stopped, or its heartbeat has not moved for a second of this process's own clock."""


class CorruptLog(Interrupted):
    """Shared memory that contradicts itself; reading it on could only give wrong records."""


class NotLocal(Exception):
    """The subscribed broker's memory is not on this machine (or in this container): pull instead."""
