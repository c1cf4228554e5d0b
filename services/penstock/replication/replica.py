"""One partition on this broker: its log, and its part in the cluster at the moment."""

from __future__ import annotations

from penstock.cluster.partitions import Member, PartitionKey, PartitionState
from penstock.log.partition import PartitionLog
from penstock.replication.following import Attachment
from penstock.replication.leadership import Leadership


class Replica:
    __slots__ = (
        "attachment",
        "broker",
        "idle_since",
        "key",
        "knows_epoch",
        "knows_epoch_since",
        "leadership",
        "log",
        "shrunk_at",
        "standing_for",
        "swapping",
    )

    def __init__(self, broker: int, log: PartitionLog, now: float) -> None:
        self.broker = broker
        self.log = log
        self.key: PartitionKey = (log.topic_id, log.partition)
        self.leadership: Leadership | None = None
        self.attachment: Attachment | None = None
        """The leader that has attached us since our start."""
        self.standing_for = -1
        """The epoch of our own candidacy; unlike a promise it is forgotten with the process (rule R3)."""
        self.swapping = False
        """A change of the partition's key is on its way: one at a time."""
        self.shrunk_at = -1e9
        """When we last dropped a backup, in this epoch or one before (rule R10)."""
        self.idle_since = now
        """Since when it neither leads nor has a leader."""
        self.knows_epoch = -1
        self.knows_epoch_since = now
        """When we heard who leads now."""

    def follows(self, state: PartitionState | None) -> bool:
        """Whether a leader of that epoch, or of a later one, has attached us: a deposed one's attention says
        nothing about whoever leads now."""
        return self.attachment is not None and (state is None or self.attachment.epoch >= state.epoch)

    @property
    def member(self) -> Member:
        return Member(self.broker, self.log.storage_id)
