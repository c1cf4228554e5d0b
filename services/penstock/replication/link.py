"""The leader's side of a pair of brokers: one connection for all partitions, and a second to catch up.

Whatever was appended while frames were on their way goes out as the next one; at most `FRAMES` are, one
while it is short, besides heartbeats, and within them at most a window per partition (rule R10). Memory
that is being sent is held until the frame is acknowledged. A link dials until it is closed, but for a broker
that left and backs up nothing of ours; what it hears it gives to the replicator.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from penstock.cluster.partitions import Member, PartitionKey
from penstock.log.partition import PartitionLog
from penstock.replication import frames
from penstock.replication.channel import Channel
from penstock.replication.courtesy import Courtesy
from penstock.replication.frames import Draft, Kind, MalformedFrame
from penstock.replication.leadership import Backup, Leadership, Sender, Shipment, common_prefix
from penstock.shm.memory import SegmentMemory
from penstock.wire import batch

if TYPE_CHECKING:
    from penstock.replication.replicator import Replicator

log = logging.getLogger(__name__)

FRAMES: Final = 2
RUN: Final = 1 << 20
"""Bytes of one partition in one frame."""
FRAME: Final = 8 << 20
NEAR: Final = 1 << 20
"""A backup that is less behind than this gets the rest on the live connection."""
REDIAL: Final = 0.1
ATTACH_AGAIN: Final = 0.2
GIVE_UP: Final = 2.0
"""Seconds after which a handshake without an answer is begun anew."""


Told = tuple[PartitionKey, Backup, int]
"""A log start that is new to a backup."""


class _Sent:
    """A frame on its way."""

    __slots__ = ("holds", "is_short", "number", "shipments", "told")

    def __init__(
        self,
        number: int,
        is_short: bool,
        shipments: list[Shipment],
        holds: list[SegmentMemory],
        told: list[Told],
    ) -> None:
        self.number = number
        self.is_short = is_short
        self.shipments = shipments
        self.holds = holds
        """Memory that the frame is sent from."""
        self.told = told

    def let_go(self) -> None:
        for memory in self.holds:
            memory.holds -= 1


class _Lane:
    """One connection: numbered frames out, acknowledgements in."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self.name = name
        self.channel: Channel | None = None
        self.sent: deque[_Sent] = deque()
        self.sent_at = 0.0
        self._number = 0

    @property
    def is_full(self) -> bool:
        """Whether the next frame waits for an answer. Behind a short one always: what is appended until then
        goes with it, and its answer comes soon. Behind a long one only when there are two."""
        sent = self.sent
        return bool(sent) and (len(sent) >= FRAMES or sent[-1].is_short)

    def send(
        self,
        draft: Draft,
        shipments: list[Shipment],
        holds: list[SegmentMemory],
        told: list[Told],
        now: float,
    ) -> None:
        assert self.channel is not None
        self._number += 1
        is_short = draft.is_short
        if is_short:
            holds = []
        for memory in holds:
            memory.holds += 1
        self.sent.append(_Sent(self._number, is_short, shipments, holds, told))
        self.sent_at = now
        self.channel.send(draft.finish(self._number))

    def answered(self, number: int, taken: set[PartitionKey] | None = None) -> list[Shipment]:
        """The backup is done with a frame, the oldest on its way: what was in it. Of all partitions in it, or
        of those in `taken` only, the backup now has the log start (rule R11).

        Numbers go on when the connection is another, so an answer to an earlier one's frame is never taken
        for one to ours.
        """
        if not self.sent or self.sent[0].number != number:
            raise MalformedFrame(f"an answer to frame {number}, which is not the next to be answered")
        sent = self.sent.popleft()
        sent.let_go()
        for key, backup, log_start in sent.told:
            if log_start > backup.start_acked and (taken is None or key in taken):
                backup.start_acked = log_start
        return sent.shipments

    # asyncio's side

    def frame(self, kind: int, body: memoryview) -> None:
        self._link.frame(self, kind, body)

    def lost(self) -> None:
        self.channel = None
        for sent in self.sent:
            sent.let_go()
        self.sent.clear()
        self._link.lane_lost(self)


class Link(Sender):
    def __init__(self, replicator: Replicator, broker: int) -> None:
        self.replicator = replicator
        self.broker = broker
        self.now: Callable[[], float] = replicator.now
        self.heard_at = self.now()
        self.is_lost = False
        """It was there, by its connection or its lease, and is no more. Of a new link that is not known."""
        self._loop = asyncio.get_running_loop()
        self.led: dict[PartitionKey, Leadership] = {}
        self._live = _Lane(self, "live")
        self._bulk = _Lane(self, "catch-up")
        self._dirty: list[Backup] = []
        """With something to send; each is `noted` while it is in there."""
        self._flush_soon = False
        self._attach_soon: dict[PartitionKey, None] = {}
        self._handshakes = 0
        """Counted here: a partition that left this broker and came back in one epoch has another `Backup`."""
        self._behind: deque[PartitionKey] = deque()
        self._bulk_moved = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._dial(self._live), name=f"link-{broker}"),
            asyncio.create_task(self._catch_up(), name=f"catch-up-{broker}"),
        ]
        self._redial = asyncio.Event()

    @property
    def is_up(self) -> bool:
        return self._live.channel is not None

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in (self._live, self._bulk):
            if lane.channel is not None:
                lane.channel.close()

    # Partitions

    def add(self, key: PartitionKey, leadership: Leadership) -> None:
        """Attach the backup of a partition that we lead; again, if it is in another epoch now."""
        self.led[key] = leadership
        self._attach(key)

    def remove(self, key: PartitionKey) -> None:
        """No longer led by us: nothing more is sent, and what is on its way counts for nothing."""
        leadership = self.led.pop(key, None)
        backup = leadership.backups.get(self.broker) if leadership is not None else None
        if backup is not None:
            backup.detach()

    def note(self, backup: Backup) -> None:
        """There is something to send. All that comes in this turn of the loop goes in one frame."""
        self._mark(backup)
        if not self._flush_soon and not self._live.is_full:
            self._flush_soon = True
            self._loop.call_soon(self._flush)

    def _mark(self, backup: Backup) -> None:
        if not backup.noted:
            backup.noted = True
            self._dirty.append(backup)

    def _flush(self) -> None:
        self._flush_soon = False
        lane = self._live
        if lane.channel is None or not self._dirty or lane.is_full or lane.channel.is_stuck:
            return
        draft = Draft()
        shipments: list[Shipment] = []
        holds: list[SegmentMemory] = []
        told: list[Told] = []
        total = 0
        now = self.now()
        dirty, self._dirty = self._dirty, []
        for backup in dirty:
            backup.noted = False
            if not backup.streaming:
                continue
            if total >= FRAME:
                self._mark(backup)
                continue
            leadership = backup.leadership
            key, partition = leadership.key, leadership.log
            room = backup.room
            try:
                run = backup.take(partition, min(RUN, room)) if room > 0 else None
            except Exception:  # this partition's trouble, and no other's (rule R10)
                log.exception("%r can't be sent to broker %d", partition, self.broker)
                backup.detach()
                self._attach_later(key)
                continue
            if run is not None and run.view is None:
                self._fall_behind(key, backup)
                continue
            base = backup.sent
            view: memoryview | None = None
            if run is not None:
                view = run.view
                assert run.segment.memory is not None
                assert view is not None
                holds.append(run.segment.memory)
                shipment = Shipment(backup, run.next_offset, len(view))
                shipments.append(shipment)
                total += shipment.size
                backup.sent_up_to(shipment, now)
                if backup.sent < partition.log_end and backup.room > 0:
                    self._mark(backup)
            watermark, log_start = partition.high_watermark, partition.log_start
            backup.told_watermark = watermark
            if log_start > backup.start_acked:
                told.append((key, backup, log_start))
            draft.add(key, leadership.epoch, base, watermark, log_start, view)
        if draft.sections:
            lane.send(draft, shipments, holds, told, now)
        if self._dirty and not lane.is_full and not self._flush_soon:
            self._flush_soon = True
            self._loop.call_soon(self._flush)

    def tick(self, now: float, heartbeat: float) -> None:
        """Called often: say what changed without an append, or that we are alive."""
        lane = self._live
        if lane.channel is None:
            return
        for leadership in self.led.values():
            backup = leadership.backups.get(self.broker)
            if (
                backup is not None
                and backup.streaming
                and (
                    backup.told_watermark != leadership.log.high_watermark
                    or backup.start_acked < leadership.log.log_start
                )
            ):
                self._mark(backup)
        self._flush()
        if now - lane.sent_at >= heartbeat and not lane.channel.is_stuck:
            lane.send(Draft(), [], [], [], now)

    def nudge(self, now: float) -> None:
        """Now and then: an attempt to attach that came to nothing, for whatever reason, is made again."""
        for key, leadership in self.led.items():
            backup = leadership.backups.get(self.broker)
            if backup is not None and not backup.attached and now - backup.tried_at > GIVE_UP:
                self._attach(key)

    def hang_up(self) -> None:
        """The other side is silent for too long: begin anew."""
        if self._live.channel is not None:
            self._live.channel.close()

    # The connection

    async def _dial(self, lane: _Lane) -> None:
        while True:
            address = self.replicator.address_of(self.broker)
            # Nobody is looked for who has left and backs up nothing of ours: it may be gone for good.
            if address is None or (not self.led and self.replicator.has_left(self.broker)):
                await asyncio.sleep(REDIAL)
                continue
            channel: Channel | None = None
            # Not wait_for: Python 3.11's may swallow the cancellation by `close`.
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(2.0):
                    channel = await self.replicator.network.dial(address, lane)
            if channel is None or channel.is_closed:
                # One made and lost before this task had its turn: it would wait for ever to be told of it.
                if lane is self._live and self.replicator.has_left(self.broker):
                    self._lose()
                await asyncio.sleep(REDIAL)
                continue
            lane.channel = channel
            channel.send(frames.message(Kind.HELLO, self.replicator.hello(self.broker, lane.name)))
            if lane is self._bulk:
                return
            self.heard_at = self.replicator.now()
            self.is_lost = False
            for key in self.led:
                self._attach(key)
            self._redial.clear()
            await self._redial.wait()
            await asyncio.sleep(REDIAL / 10)

    def lane_lost(self, lane: _Lane) -> None:
        if lane is self._live:
            self._redial.set()
            for leadership in self.led.values():
                backup = leadership.backups.get(self.broker)
                if backup is not None:
                    backup.detach()
            if self._bulk.channel is not None:
                self._bulk.channel.close()
            self._lose()
        else:
            for key in self._behind:
                behind = self.led.get(key)
                backup = behind.backups.get(self.broker) if behind is not None else None
                if backup is not None:
                    backup.detach()
                    self._attach_later(key)
            self._behind.clear()
        self._bulk_moved.set()

    def _lose(self) -> None:
        """Once, however often it can't be reached after that."""
        if not self.is_lost:
            self.is_lost = True
            self.replicator.link_lost(self)

    # What the backup says

    def frame(self, lane: _Lane, kind: int, body: memoryview) -> None:
        self.heard_at = now = self.now()
        if kind == frames.TAKEN:
            for shipment in lane.answered(frames.read_taken(body)):
                if not shipment.is_old:
                    self._acknowledged(shipment.backup, shipment.end, now)
            self._go_on()
        elif kind == frames.ACK:
            number, acknowledged = frames.read_acks(body)
            shipments = lane.answered(number, {key for key, _, _ in acknowledged}) if number else []
            old = {each.backup.leadership.key for each in shipments if each.is_old}
            for key, epoch, end in acknowledged:
                led = self.led.get(key)
                if led is None or led.epoch != epoch or key in old:
                    continue  # of another epoch or handshake: its log may have been another (rule R4)
                found = led.backups.get(self.broker)
                if found is not None:
                    self._acknowledged(found, end, now)
            self._go_on()
        elif kind == Kind.ATTACHED:
            begins = [begin for entry in frames.read_message(body) if (begin := self._attached(entry))]
            if begins and self._live.channel is not None:
                self._live.channel.send(frames.message(Kind.BEGIN, begins))
        elif kind == Kind.BEGUN:
            for entry in frames.read_message(body):
                self._begun(entry)
        elif kind == Kind.REFUSED:
            for entry in frames.read_message(body):
                self._refused(entry)
        else:
            raise MalformedFrame(f"frame of kind {kind} from a backup")

    def _acknowledged(self, backup: Backup, end: int, now: float) -> None:
        """Nothing counts of one that is detached: by another handshake, or since we lead it no more."""
        leadership = backup.leadership
        partition = leadership.log
        if not backup.attached or end > backup.sent:
            return
        backup.acknowledge(end, now)
        leadership.advance()
        if backup.sent < partition.log_end and backup.streaming:
            self._mark(backup)

    def _go_on(self) -> None:
        """There is room for more on its way."""
        if self._behind:
            self._bulk_moved.set()
        if self._dirty:
            self._flush()

    # The handshake

    def _attach(self, key: PartitionKey) -> None:
        if self._live.channel is None:
            return
        if not self._attach_soon:
            asyncio.get_running_loop().call_soon(self._send_attach)
        self._attach_soon[key] = None

    def _attach_later(self, key: PartitionKey) -> None:
        asyncio.get_running_loop().call_later(ATTACH_AGAIN, self._attach_if_led, key)

    def _attach_if_led(self, key: PartitionKey) -> None:
        leadership = self.led.get(key)
        backup = leadership.backups.get(self.broker) if leadership else None
        if backup is not None and not backup.attached:
            self._attach(key)

    def _send_attach(self) -> None:
        keys, self._attach_soon = self._attach_soon, {}
        if self._live.channel is None:
            return
        wanted = []
        for key in keys:
            leadership = self.led.get(key)
            if leadership is not None and self.broker in leadership.backups:
                backup = leadership.backups[self.broker]
                backup.detach()
                self._handshakes += 1
                backup.handshake = self._handshakes
                backup.tried_at = self.replicator.now()
                wanted.append(
                    {
                        "topic": key[0].hex(),
                        "partition": key[1],
                        "epoch": leadership.epoch,
                        "handshake": backup.handshake,
                    }
                )
        if wanted:
            self._live.channel.send(frames.message(Kind.ATTACH, wanted))

    def _find(self, entry: Any) -> tuple[PartitionKey, Leadership, Backup] | None:
        key = (bytes.fromhex(entry["topic"]), entry["partition"])
        leadership = self.led.get(key)
        if leadership is None or leadership.epoch != entry["epoch"] or self.broker not in leadership.backups:
            return None
        return key, leadership, leadership.backups[self.broker]

    def _attached(self, entry: Any) -> Any:
        found = self._find(entry)
        if found is None:
            return None
        key, leadership, backup = found
        if entry["handshake"] != backup.handshake:
            return None
        if "error" in entry:
            if entry["error"] == "fenced":
                self.replicator.fenced(key, leadership, entry["promised"])
            self._attach_later(key)  # until it takes us, or our epoch is over
            return None
        partition = leadership.log
        answer = {
            "topic": entry["topic"],
            "partition": key[1],
            "epoch": leadership.epoch,
            "handshake": backup.handshake,
        }
        # Who is listed may be elected at any moment, so must not begin anew; and has been copied already.
        listed = Member(self.broker, entry["storage"]) in leadership.members
        newest = entry["epochs"][-1][0] if entry["epochs"] else -1
        if newest < leadership.unclean_since and entry["end"] > 0 and not listed:
            return answer | {"cut": None, "reset": partition.log_start, "given_up": True}
        cut = common_prefix(partition, [(epoch, start) for epoch, start in entry["epochs"]], entry["end"])
        if cut is None and entry["end"] == 0 == partition.log_start:
            cut = 0  # it has nothing at all
        # Where compaction took an epoch's records before one of the two copied the log, the tables differ:
        # less seems common than is committed. Who leads has all of that, so the other begins anew.
        committed: int = entry["committed"]
        differs = cut is not None and cut < committed <= leadership.start_offset
        if cut is None or cut < partition.log_start or cut < entry["start"] or differs:
            if listed:  # not before it has left the set, which it does by not being attached
                self._attach_later(key)
                return None
            return answer | {"cut": None, "reset": partition.log_start, "began": leadership.start_offset}
        return answer | {"cut": cut, "reset": None}

    def _begun(self, entry: Any) -> None:
        found = self._find(entry)
        if found is None:
            return
        key, leadership, backup = found
        if entry["handshake"] != backup.handshake:
            return
        if "error" in entry:
            log.warning("broker %d can't take %r: %s", self.broker, leadership.log, entry["error"])
            self._attach_later(key)
            return
        backup.attach(entry["storage"], entry["end"], entry["acked"], self.replicator.now())
        self._fall_behind(key, backup)
        self._go_live_if_near(key, leadership, backup)
        leadership.advance()

    def _refused(self, entry: Any) -> None:
        found = self._find(entry)
        if found is None:
            return
        key, leadership, backup = found
        if entry["promised"] > leadership.epoch:
            self.replicator.fenced(key, leadership, entry["promised"])
        if backup.attached:
            backup.detach()
            self._attach_later(key)

    # Catching up

    def _fall_behind(self, key: PartitionKey, backup: Backup) -> None:
        backup.streaming = False
        if key not in self._behind:
            self._behind.append(key)
        self._bulk_moved.set()

    def _go_live_if_near(self, key: PartitionKey, leadership: Leadership, backup: Backup) -> bool:
        partition = leadership.log
        if backup.acked != backup.sent or not backup.attached or not _is_near(partition, backup.sent):
            return False
        backup.streaming = True
        backup.sender = self
        with contextlib.suppress(ValueError):
            self._behind.remove(key)
        partition.replicated = True
        partition.listener = leadership
        self.note(backup)
        return True

    async def _catch_up(self) -> None:
        """One chunk at a time, a partition after the other, with rests in between."""
        courtesy = Courtesy(self.now, self.replicator.demand)
        while True:
            while not self._behind:
                self._bulk_moved.clear()
                await self._bulk_moved.wait()
            if self._bulk.channel is None:
                if not self.is_up:
                    await asyncio.sleep(REDIAL)
                    continue
                await self._dial(self._bulk)
            key = self._behind[0]
            self._behind.rotate(-1)
            leadership = self.led.get(key)
            backup = leadership.backups.get(self.broker) if leadership else None
            if leadership is None or backup is None or not backup.attached:
                with contextlib.suppress(ValueError):
                    self._behind.remove(key)
                continue
            if self._go_live_if_near(key, leadership, backup):
                leadership.advance()
                continue
            started = self.now()
            try:
                await self._send_chunk(key, leadership, backup)
            except Exception:
                log.exception("catching up %r on broker %d failed", leadership.log, self.broker)
                backup.detach()
                self._attach_later(key)
            await asyncio.sleep(courtesy.rest(self.now() - started))

    async def _send_chunk(self, key: PartitionKey, leadership: Leadership, backup: Backup) -> None:
        partition = leadership.log
        if backup.sent < partition.log_start:
            backup.detach()  # what it needs was deleted: the handshake lets it begin anew
            self._attach_later(key)
            return
        run = backup.take(partition, RUN)
        if run is not None:
            view, next_offset = run.view, run.next_offset
            holds = [run.segment.memory] if view is not None and run.segment.memory is not None else []
            if view is None:
                asked = (backup.sent, backup.handshake)
                view = memoryview(await self.replicator.read_cold(run.segment, backup.sent, RUN))
                if (backup.sent, backup.handshake) != asked:
                    return  # it goes on elsewhere now: what was read is not what comes next there
                _, next_offset = batch.whole_run(view, 0, len(view))
            channel = self._bulk.channel
            if channel is None or not backup.attached or self.led.get(key) is not leadership or not view:
                return
            base = backup.sent
            shipment = Shipment(backup, next_offset, len(view))
            now = self.now()
            backup.sent_up_to(shipment, now)
            watermark, log_start = partition.high_watermark, partition.log_start
            draft = Draft()
            draft.add(key, leadership.epoch, base, watermark, log_start, view)
            self._bulk.send(draft, [shipment], holds, [], now)
        while (
            self.led.get(key) is leadership
            and backup.attached
            and backup.acked < backup.sent
            and self._bulk.channel is not None
        ):
            self._bulk_moved.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._bulk_moved.wait()


def _is_near(partition: PartitionLog, offset: int) -> bool:
    """Whether all from `offset` on is in memory and not much."""
    left = 0
    for segment in reversed(partition.segments):
        if segment.next_offset <= offset:
            break
        left += segment.size
        if segment.base_offset <= offset and segment.is_hot:
            left -= segment.position_of(offset)
        if left > NEAR or not segment.is_hot:
            return False
    return True
