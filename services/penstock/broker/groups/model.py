"""Values of the group coordinator, and what it asks of the world: timers and topics.

Durations and moments are milliseconds throughout, as on the wire and in `__consumer_offsets`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol
from uuid import UUID

Response = dict[str, Any]
"""A response's fields under kio's names; the wire layer makes the versioned message of it."""

TopicPartition = tuple[str, int]

NO_OFFSET: Final = -1


class State(Enum):
    """Of a classic group; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """Who sent a request."""

    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int | None = None
    """Set only by old clients (OffsetCommit v2-4) that choose a retention of their own."""


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The defaults are Kafka's, but for the initial delay: local groups should start in well under 3 s."""

    initial_rebalance_delay_ms: int = 300
    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    new_member_join_timeout_ms: int = 300_000
    """A member that waits for its first generation doesn't heartbeat yet; this bounds it instead."""
    max_size: int = 2**31 - 1
    max_offset_metadata_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class MemberView:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group as it was when asked for: for HTTP, metrics and lag."""

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    generation: int
    members: tuple[MemberView, ...]
    offsets: Mapping[TopicPartition, CommittedOffset]


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """Time: the real one below, a driven one in tests."""

    def now_ms(self) -> int: ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer: ...


class LoopTimers:
    """Wall-clock moments, delays on the running event loop."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)


class Alarm:
    """At most one timer: setting it again takes back the last."""

    __slots__ = ("_timer",)

    def __init__(self) -> None:
        self._timer: Timer | None = None

    def set(self, timers: Timers, delay_ms: int, callback: Callable[[], None]) -> None:
        self.cancel()
        self._timer = timers.call_later(delay_ms, callback)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Topics(Protocol):
    """What the coordinator must know of the broker's topics."""

    def topic_name(self, topic_id: UUID) -> str | None: ...

    def topic_id(self, name: str) -> UUID | None: ...

    def has_partition(self, name: str, partition: int) -> bool: ...
