"""A partition led: who has how much of it, and so what is committed. No I/O.

One `Leadership` per epoch. `Backup` is a replica elsewhere: attached by the handshake of this epoch, or
counting for nothing. The union rule (R2), the epoch in every acknowledgement (R4) and min.insync.replicas
(R6) are all in `advance`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from penstock.cluster.partitions import Member, PartitionKey, PartitionState
from penstock.log.partition import EpochStart, Listener, PartitionLog
from penstock.log.segment import Segment
from penstock.replication import sabotage
from penstock.shm.layout import PartitionState as ControlState
from penstock.wire import batch

WINDOW: Final = 8 << 20
"""Bytes of one partition that may be on their way to one backup (rule R10)."""
NEVER: Final = -1
_ACKNOWLEDGES_EARLY: Final = sabotage.ACKNOWLEDGES_EARLY


class Run:
    """Batches to send. `view` is None when they are on disk only."""

    __slots__ = ("next_offset", "segment", "view")

    def __init__(self, segment: Segment, view: memoryview | None, next_offset: int) -> None:
        self.segment = segment
        self.view = view
        self.next_offset = next_offset


class Shipment:
    """Records on their way to a backup. They count when they have arrived, if that is still the same
    leadership, and no other handshake was begun meanwhile (rule R4)."""

    __slots__ = ("backup", "end", "handshake", "size")

    def __init__(self, backup: Backup, end: int, size: int) -> None:
        self.backup = backup
        self.handshake = backup.handshake
        self.end = end
        self.size = size

    @property
    def is_old(self) -> bool:
        """Sent before another handshake was begun, or to a backup that is none any more."""
        return not self.backup.attached or self.handshake != self.backup.handshake


class Sender:
    """Who brings a backup what was appended."""

    def note(self, backup: Backup) -> None:
        raise NotImplementedError


class Backup:
    """One replica of a led partition, as its leader knows it."""

    __slots__ = (
        "_segment",
        "_unacknowledged",
        "acked",
        "attached",
        "broker",
        "handshake",
        "leadership",
        "noted",
        "on_its_way",
        "position",
        "progress_at",
        "reached",
        "sender",
        "sent",
        "start_acked",
        "storage",
        "streaming",
        "told_watermark",
        "tried_at",
    )

    def __init__(self, leadership: Leadership, broker: int, now: float) -> None:
        self.leadership = leadership
        self.broker = broker
        self.storage = 0
        self.attached = False
        """The handshake of this epoch is done."""
        self.tried_at = now
        self.handshake = 0
        """Counts them: an answer to an earlier one must not cut what came since."""
        self.streaming = False
        """It gets what is appended at once; otherwise it is catching up."""
        self.acked = NEVER
        self.sent = 0
        self.reached = 0
        """How far it was ever sent: to be attached again is not to have acknowledged it."""
        self.on_its_way: list[Shipment] = []
        """What was sent and not acknowledged, in order."""
        self.progress_at = now
        """When it last acknowledged something new, or had nothing to acknowledge."""
        self.told_watermark = NEVER
        """What it was last sent of it."""
        self.start_acked = NEVER
        """The log start that it has, by its own word since the handshake."""
        self.sender: Sender | None = None
        """Set while it is `streaming`."""
        self.noted = False
        """The sender knows that there is something to send."""
        self._segment: Segment | None = None
        self.position = 0
        self._unacknowledged = 0

    def attach(self, storage: int, end: int, acked: int, now: float) -> None:
        if acked > self.acked or self.acked >= self.reached or storage != self.storage:
            self.progress_at = now
        self.storage = storage
        self.attached = True
        self.streaming = False
        self.sent, self.acked = end, acked
        self.on_its_way.clear()
        self._unacknowledged = 0
        self.told_watermark = self.start_acked = NEVER
        self._segment = None

    def detach(self) -> None:
        """What it has said so far still counts; nothing is sent until the next handshake."""
        self.attached = self.streaming = False

    def take(self, log: PartitionLog, limit: int) -> Run | None:
        """The next batches to send: all that is there, within `limit` and one segment. None: nothing."""
        if self.sent >= log.log_end:
            return None
        segment = self._segment
        if segment is None or segment.memory is None or self.position > segment.size:
            segment = self._find(log)
        elif self.position == segment.size:
            segment = self._find(log)  # it was sealed, the next one goes on
        if segment is None:
            return None
        if segment.memory is None:
            return Run(segment, None, self.sent)
        start = self.position
        if segment.size - start <= limit:
            end, next_offset = segment.size, segment.next_offset
        else:
            end, next_offset = _boundary(segment, start, limit)
        self.position = end
        return Run(segment, segment.bytes_between(start, end), next_offset)

    def _find(self, log: PartitionLog) -> Segment | None:
        bases = [segment.base_offset for segment in log.segments]
        at = max(0, bisect_right(bases, self.sent) - 1)
        while at < len(log.segments) and log.segments[at].next_offset <= self.sent:
            at += 1
        if at == len(log.segments):
            return None
        segment = self._segment = log.segments[at]
        if segment.memory is not None:
            self.position = segment.position_of(self.sent) if self.sent > segment.base_offset else 0
        return segment

    def sent_up_to(self, shipment: Shipment, now: float) -> None:
        if self.acked >= self.reached:
            self.progress_at = now
        self.sent = shipment.end
        if self.sent > self.reached:
            self.reached = self.sent
        self.on_its_way.append(shipment)
        self._unacknowledged += shipment.size

    def acknowledge(self, end: int, now: float) -> None:
        if end > self.acked:
            self.acked = end
            self.progress_at = now
        while self.on_its_way and self.on_its_way[0].end <= end:
            self._unacknowledged -= self.on_its_way.pop(0).size

    @property
    def room(self) -> int:
        return WINDOW - self._unacknowledged


def _boundary(segment: Segment, start: int, limit: int) -> tuple[int, int]:
    """The last batch end within start..start+limit, one batch at least, and the offset there."""
    view = segment.bytes_between(0, segment.size)
    position, next_offset = start, NEVER
    while position < segment.size:
        base, size = batch.read_place(view, position)
        if position + size - start > limit and position > start:
            break
        next_offset = base + batch.read_last_offset_delta(view, position) + 1
        position += size
    return position, next_offset


class Leadership(Listener):
    def __init__(self, log: PartitionLog, state: PartitionState, me: Member, now: float) -> None:
        self.log = log
        self.key: PartitionKey = (log.topic_id, log.partition)
        self.me = me
        self.epoch = state.epoch
        self.start_offset = log.log_end
        """Everything of earlier epochs lies below: committed or not, it is kept (rule R8)."""
        self.since = now
        self.known: frozenset[Member] = frozenset(state.in_sync)
        self.proposed: frozenset[Member] | None = None
        self.replicas = state.replicas
        self.unclean_since = state.unclean_since
        self.backups = {broker: Backup(self, broker, now) for broker in state.brokers if broker != me.broker}
        self.handing_over = False
        self._needed: list[tuple[Backup | None, int]] = []
        """Whose acknowledgement a commit needs: each other member, with the storage it counts for."""
        self._size = 0
        """Members of the set, of the smaller one while there are two."""
        self._note_needed()

    # The in-sync set

    def note(self, state: PartitionState, now: float) -> None:
        """A newer revision of the key, still in our epoch."""
        self.known = frozenset(state.in_sync)
        self.replicas = state.replicas
        wanted = set(state.brokers)
        for broker in wanted - {self.me.broker} - self.backups.keys():
            self.backups[broker] = Backup(self, broker, now)
        for broker in self.backups.keys() - wanted:
            self.backups.pop(broker).detach()
        self._note_needed()
        self.advance()

    def propose(self, members: frozenset[Member]) -> None:
        """From now on until `settled`, both sets must have what is committed (rule R2)."""
        self.proposed = members
        self.log.replicated = True
        self._note_needed()
        self.advance()

    def settled(self) -> None:
        self.proposed = None
        self._note_needed()
        self.advance()

    @property
    def members(self) -> frozenset[Member]:
        """All that etcd may list: whoever is in the set we know, or in the one we proposed."""
        return self.known if self.proposed is None else self.known | self.proposed

    def _note_needed(self) -> None:
        self._size = len(self.known)
        if self.proposed is not None:
            self._size = min(self._size, len(self.proposed))
        self._needed = [
            (self.backups.get(member.broker), member.storage) for member in self.members if member != self.me
        ]

    def missing(self, now: float, silent: frozenset[int], patience: float) -> frozenset[Member]:
        """Members that hold up commits: gone, silent, or standing still for too long."""
        gone = []
        for member in self.known - {self.me}:
            backup = self.backups.get(member.broker)
            if backup is None or member.broker in silent:
                gone.append(member)
            elif not backup.attached:
                if now - max(self.since, backup.progress_at) > patience:
                    gone.append(member)
            elif backup.storage != member.storage:
                gone.append(member)  # the log that was in sync is no more (rule R1)
            elif backup.acked < self.log.log_end and now - backup.progress_at > patience:
                gone.append(member)
        return frozenset(gone)

    def moved_away(self) -> frozenset[Member]:
        """Members it was moved away from, once everybody it was moved to has it all: is in the set, and not
        only by the key's word. Since we lead, each has shown us the log that is listed."""
        there = {self.me.broker}
        for member in self.known - {self.me}:
            backup = self.backups.get(member.broker)
            if backup is not None and backup.attached and backup.storage == member.storage:
                there.add(member.broker)
        if not there.issuperset(self.replicas):
            return frozenset()
        return frozenset(m for m in self.known - {self.me} if m.broker not in self.replicas)

    def joining(self, now: float, silent: frozenset[int], lag: float) -> frozenset[Member]:
        """Backups that keep up: nearly there, and they had news within `lag` seconds."""
        listed = {member.broker for member in self.known if self._has(member)}
        return frozenset(
            Member(backup.broker, backup.storage)
            for backup in self.backups.values()
            if backup.streaming
            and backup.broker in self.replicas
            and backup.broker not in silent
            and backup.broker not in listed
            and backup.room > 0
            and (backup.acked == self.log.log_end or now - backup.progress_at < lag)
        )

    def complete(self, members: frozenset[Member]) -> bool:
        """Whether all of them have all that is committed, all of earlier epochs, and know what was deleted
        (rule R11): only then may they be listed, since any of them may be elected next."""
        floor = max(self.start_offset, self.log.high_watermark)
        for member in members - self.known - {self.me}:
            backup = self.backups.get(member.broker)
            if (
                backup is None
                or not backup.attached
                or backup.storage != member.storage
                or backup.acked < floor
                or backup.start_acked < self.log.log_start
            ):
                return False
        return True

    def _has(self, member: Member) -> bool:
        backup = self.backups.get(member.broker)
        return backup is None or not backup.attached or backup.storage == member.storage

    # What is committed

    def advance(self) -> None:
        log = self.log
        if self._size < log.min_insync_replicas:
            log.replicated = True
            if not log.short_of_replicas:
                log.short_of_replicas = True
                log.wake()  # who waits for acks=all is told now (rule R6)
            return
        log.short_of_replicas = False
        end = log.log_end if log.in_memory else log.durable_end
        if not _ACKNOWLEDGES_EARLY:
            for backup, storage in self._needed:
                if backup is None or backup.storage != storage:
                    return
                if backup.acked < end:
                    end = backup.acked
        if end > log.high_watermark:
            log.commit(end)
        if not self._needed and log.replicated and not any(b.streaming for b in self.backups.values()):
            log.commit_all()
            log.replicated = False

    def on_append(self) -> None:
        """A record for others to have. On the way of every produced batch: keep it short."""
        for backup in self.backups.values():
            if backup.streaming and not backup.noted and backup.sender is not None:
                backup.sender.note(backup)
        self.appended()

    def appended(self) -> None:
        """Nobody has to acknowledge it if nobody else is in the set."""
        if _ACKNOWLEDGES_EARLY or (self._size == 1 and self.proposed is None):
            self.advance()

    def suspect(self, doubtful: bool) -> None:
        """Tell readers on this machine whether this leader still knows where it stands (rule S9)."""
        control = self.log.control
        if doubtful and control.state is ControlState.LIVE:
            control.state = ControlState.SUSPECT
        elif not doubtful and control.state is ControlState.SUSPECT:
            control.state = ControlState.LIVE


def common_prefix(log: PartitionLog, epochs: Sequence[tuple[int, int]], end: int) -> int | None:
    """How much of a backup's log (its epoch table and end) is ours too; None: nothing at all.

    The newest epoch that both have: there both logs came from one leader, up to where either ends.
    """
    for at in range(len(epochs) - 1, -1, -1):
        epoch, _ = epochs[at]
        its_end = epochs[at + 1][1] if at + 1 < len(epochs) else end
        ours: EpochStart = log.end_offset_for_epoch(epoch)
        if ours.epoch == epoch:
            return min(its_end, ours.start_offset)
    return None
