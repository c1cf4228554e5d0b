"""The backup's side: promises, handshakes, and appending what leaders send. One `Inbound` per connection.

Called by the channel with frames and by the replicator's clock. Everything a leader asks is checked
against the promised epoch first (rule R3); an acknowledgement says which epoch it is for (rule R4).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from penstock.log.partition import PartitionLog, WouldLoseCommitted
from penstock.log.pool import MemoryExhausted
from penstock.replication import frames, sabotage
from penstock.replication.channel import Channel
from penstock.replication.frames import Kind, MalformedFrame, Section

if TYPE_CHECKING:
    from penstock.replication.replica import Replica
    from penstock.replication.replicator import Replicator

log = logging.getLogger(__name__)


class Attachment:
    """A backup is attached to one leader in one epoch; `begun` once its log was cut to the common prefix."""

    __slots__ = ("begun", "epoch", "handshake", "inbound", "parked")

    def __init__(self, inbound: Inbound, epoch: int, handshake: int) -> None:
        self.inbound = inbound
        self.epoch = epoch
        self.handshake = handshake
        self.begun = False
        self.parked: list[Section] = []
        """Came while there was no memory for them; bounded by the leader's window, and by `_park`."""

    def park(self, section: Section, records: memoryview) -> None:
        section.records = memoryview(bytes(records))  # the frame is good only during the call
        self.parked.append(section)

    @property
    def parked_bytes(self) -> int:
        return sum([len(section.records) for section in self.parked if section.records is not None])

    def give_up(self) -> None:
        """Take nothing more before the next handshake."""
        self.begun = False
        self.parked = []


class Inbound:
    """A leader's connection to us."""

    def __init__(self, replicator: Replicator, channel: Channel) -> None:
        self._replicator = replicator
        self._replicas = replicator.replicas
        self._now = replicator.now
        self.channel = channel
        self.broker = -1
        self.incarnation = 0
        self.live = False
        self.heard_at: float = self._now()
        self.closed = False

    # Frames

    def frame(self, kind: int, body: memoryview) -> None:
        self.heard_at = self._now()
        if kind == frames.DATA:
            self._data(body)
        elif kind == Kind.HELLO:
            self._hello(frames.read_message(body))
        elif kind == Kind.ATTACH:
            answers = [self._attach(entry) for entry in frames.read_message(body)]
            self.channel.send(frames.message(Kind.ATTACHED, answers))
        elif kind == Kind.BEGIN:
            answers = [self._begin(entry) for entry in frames.read_message(body)]
            self.channel.send(frames.message(Kind.BEGUN, answers))
        else:
            raise MalformedFrame(f"frame of kind {kind} from a leader")

    def lost(self) -> None:
        self.closed = True
        self._replicator.inbound_lost(self)

    def _hello(self, hello: Any) -> None:
        self._replicator.check_hello(hello)
        self.broker, self.incarnation = hello["broker"], hello["incarnation"]
        self.live = hello["lane"] == "live"
        if self.live:
            self._replicator.inbound_opened(self)

    # The handshake

    def _attach(self, wanted: Any) -> Any:
        key = (bytes.fromhex(wanted["topic"]), wanted["partition"])
        epoch: int = wanted["epoch"]
        answer = {
            "topic": wanted["topic"],
            "partition": key[1],
            "epoch": epoch,
            "handshake": wanted["handshake"],
        }
        replica = self._replicator.replicas.get(key)
        if replica is None or replica.log.damage is not None or self._replicator.stopped:
            return answer | {"error": "unknown"}
        partition = replica.log
        led = replica.leadership
        if sabotage.OBEYS_ANYBODY:
            partition.control.promised_epoch = epoch
        elif (led is not None and led.epoch >= epoch) or not partition.promise(epoch):
            return answer | {"error": "fenced", "promised": partition.control.promised_epoch}
        self._replicator.attached(replica, Attachment(self, epoch, wanted["handshake"]))
        return answer | {
            "storage": partition.storage_id,
            "end": partition.log_end,
            "start": partition.log_start,
            "committed": partition.high_watermark,
            "epochs": [[entry.epoch, entry.start_offset] for entry in partition.epochs],
        }

    def _begin(self, wanted: Any) -> Any:
        key = (bytes.fromhex(wanted["topic"]), wanted["partition"])
        answer = {
            "topic": wanted["topic"],
            "partition": key[1],
            "epoch": wanted["epoch"],
            "handshake": wanted["handshake"],
        }
        replica = self._replicator.replicas.get(key)
        attachment = replica.attachment if replica else None
        if (
            replica is None
            or attachment is None
            or attachment.inbound is not self
            or attachment.epoch != wanted["epoch"]
            or attachment.handshake != wanted["handshake"]  # the cut is for the log as it was then
        ):
            return answer | {"error": "not attached"}
        if self._replicator.parked > self._replicator.parking // 2:
            return answer | {"error": "too much waits for memory already"}
        partition, store = replica.log, self._replicator.store
        if sabotage.OBEYS_ANYBODY:
            partition.high_watermark = min(partition.high_watermark, wanted["cut"] or wanted["reset"] or 0)
        try:
            if wanted["reset"] is not None:
                if wanted.get("given_up"):
                    log.critical(
                        "%r: an operator gave its log up, %d to %d; copied anew from the leader",
                        partition,
                        partition.log_start,
                        partition.log_end,
                    )
                elif partition.high_watermark > wanted["began"]:
                    raise WouldLoseCommitted(f"{partition}: asked to begin anew at {wanted['reset']}")
                log.info("%r: copied anew from offset %d on", partition, wanted["reset"])
                store.reset(partition, wanted["reset"])
            elif wanted["cut"] < partition.log_end:
                log.info("%r: cut from %d to %d", partition, partition.log_end, wanted["cut"])
                store.truncate(partition, wanted["cut"])
        except (MemoryExhausted, OSError) as error:  # nothing was cut: it is asked again, others go on
            return answer | {"error": str(error)}
        except WouldLoseCommitted as error:
            # An ex-leader's commit word never covers what is cut: if this is ever seen, cut nothing.
            log.error("%s; the replica is out of service until somebody looks at it", error)
            partition.damage = str(error)
            return answer | {"error": str(error)}
        partition.leader_epoch = wanted["epoch"]
        attachment.begun = True
        return answer | {
            "storage": partition.storage_id,
            "end": partition.log_end,
            "acked": end_of(partition),
        }

    # Records

    def _data(self, body: memoryview) -> None:
        number, sections = frames.read_data(body)
        replicas = self._replicas
        taken: list[Section] = []
        # Taken, but for the log start: our watermark, which goes by whole runs, is not there yet.
        short: list[Section] = []
        whole = True
        refused: list[Any] = []
        for section in sections:
            replica = replicas.get(section.key)
            attachment = replica.attachment if replica is not None else None
            if (
                replica is None
                or attachment is None
                or attachment.epoch != section.epoch
                or not attachment.begun
                or attachment.inbound.broker != self.broker
                or attachment.inbound.incarnation != self.incarnation
                or section.epoch < replica.log.promised_epoch
                or (
                    section.records is not None
                    and not attachment.parked
                    and section.base != replica.log.log_end
                )
            ):
                refused.append(_refusal(section, replica))
                whole = False
            elif self._take(replica, attachment, section):
                if section.log_start > replica.log.log_start:
                    short.append(section)
                    whole = False
                    continue
                taken.append(section)
                whole = whole and replica.log.in_memory  # else it counts when it is on disk
            else:
                whole = False
                if not self._park(attachment, section):
                    refused.append(_refusal(section, replica))
        if whole:
            self.channel.send(frames.taken(number))
            return
        if refused:
            self.channel.send(frames.message(Kind.REFUSED, refused))
        self.channel.send(frames.acks(number, self._ends(taken)))
        if short:  # not as an answer to the frame: that would vouch for the log start (rule R11)
            self.channel.send(frames.acks(0, self._ends(short)))

    def _ends(self, sections: list[Section]) -> list[frames.Acknowledged]:
        replicas = self._replicas
        return [(section.key, section.epoch, end_of(replicas[section.key].log)) for section in sections]

    def _take(self, replica: Replica, attachment: Attachment, section: Section) -> bool:
        """Append one section; False if it has to wait for memory, or for one that does."""
        partition = replica.log
        records = section.records
        if records is not None:
            if attachment.parked:
                return False
            try:
                began = partition.append_run(records)
            except MemoryExhausted:
                return False
            if began:
                self._replicator.store.write_behind.save_state(partition)
        if section.high_watermark > partition.high_watermark:
            partition.commit(section.high_watermark)
            if section.log_start > partition.high_watermark:
                partition.commit_within(section.high_watermark)  # else it could never follow that log start
        if section.log_start > partition.log_start:
            self._replicator.store.follow_log_start(partition, section.log_start)
        return True

    def _park(self, attachment: Attachment, section: Section) -> bool:
        """Keep it until there is memory; False if too much waits already, of all partitions together."""
        assert section.records is not None
        replicator, size = self._replicator, len(section.records)
        if replicator.parked + size > replicator.parking:
            attachment.give_up()
            return False
        replicator.parked += size
        attachment.park(section, section.records)
        return True

    def retry(self, replica: Replica, attachment: Attachment) -> None:
        """There may be memory again for what was parked."""
        parked, attachment.parked = attachment.parked, []
        for at, section in enumerate(parked):
            if section.base != replica.log.log_end:
                attachment.give_up()
                self.channel.send(frames.message(Kind.REFUSED, [_refusal(section, replica)]))
                return
            if not self._take(replica, attachment, section):
                attachment.parked = parked[at:]
                break
        self.acknowledge(replica, attachment)

    def leave(self, replica: Replica, attachment: Attachment) -> None:
        """The log may be deleted: what was acknowledged of it must not make it a member any more."""
        entry = {
            "topic": replica.key[0].hex(),
            "partition": replica.key[1],
            "epoch": attachment.epoch,
            "promised": -1,
        }
        self.channel.send(frames.message(Kind.REFUSED, [entry]))

    def acknowledge(self, replica: Replica, attachment: Attachment) -> None:
        """Say again how far we are: the disk, or memory, has come along."""
        self.channel.send(frames.acks(0, [(replica.key, attachment.epoch, end_of(replica.log))]))


def end_of(partition: PartitionLog) -> int:
    """How much of the log this replica vouches for."""
    return partition.log_end if partition.in_memory else partition.durable_end


def _refusal(section: Section, replica: Replica | None) -> Any:
    return {
        "topic": section.key[0].hex(),
        "partition": section.key[1],
        "epoch": section.epoch,
        "promised": replica.log.control.promised_epoch if replica is not None else -1,
    }
