"""Elections that this broker won, counted by cause, for metrics and for people. No I/O.

Reasons are sentences made where an election begins and kept in etcd; a metric needs few, fixed words.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from enum import StrEnum
from typing import Final, NamedTuple

from penstock.cluster.partitions import PartitionKey


class Cause(StrEnum):
    FIRST = "first"
    """A new partition's first leader."""
    FAILOVER = "failover"
    """The leader before was lost, or nobody led."""
    RESTART = "restart"
    """The same leader, after its restart."""
    HANDOVER = "handover"
    """The leader before stopped cleanly."""
    HOME = "home"
    """Back to the preferred leader."""
    UNCLEAN = "unclean"
    """An operator gave up records that only lost replicas had."""
    OTHER = "other"


_WORDS: Final = {
    Cause.FIRST: r"first leader",
    Cause.RESTART: r"restarted$|only replica",
    Cause.HANDOVER: r"stops$",
    Cause.HOME: r"preferred leader$",
    Cause.UNCLEAN: r"^an operator gave up",
    Cause.FAILOVER: r"no leader|lost its (lease|log)$|closed its connection$|silent for|does not lead$",
}


class Election(NamedTuple):
    """Who took what over, when and why."""

    at: float
    key: PartitionKey
    topic: str
    epoch: int
    reason: str

    @property
    def cause(self) -> Cause:
        return next((cause for cause, words in _WORDS.items() if re.search(words, self.reason)), Cause.OTHER)


class Elections:
    def __init__(self) -> None:
        self.recent: deque[Election] = deque(maxlen=100)
        self.counts: Counter[Cause] = Counter(dict.fromkeys(Cause, 0))

    def note(self, election: Election) -> None:
        self.recent.append(election)
        self.counts[election.cause] += 1
