"""Consumer groups: membership, rebalances and committed offsets (Kafka's classic protocol)."""

from penstock.broker.groups.coordinator import GroupCoordinator
from penstock.broker.groups.journal import OffsetsLog, partition_for
from penstock.broker.groups.model import (
    ClientInfo,
    CommittedOffset,
    GroupSettings,
    GroupView,
    LoopTimers,
    MemberView,
    Timers,
    Topics,
)

__all__ = [
    "ClientInfo",
    "CommittedOffset",
    "GroupCoordinator",
    "GroupSettings",
    "GroupView",
    "LoopTimers",
    "MemberView",
    "OffsetsLog",
    "Timers",
    "Topics",
    "partition_for",
]
