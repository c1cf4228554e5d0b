"""A broker's part in the cluster: which of its replicas lead, follow, or stand for election, and why.

The directory tells it what the cluster agreed on, links and inbound connections tell it who is alive; out
of that it takes and gives up leaderships, and changes in-sync sets by compare-and-swap. Safety hangs on
the promises in part.ctl and on those swaps only, never on a clock: suspicion decides when, not what.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from penstock.cluster import partitions
from penstock.cluster.directory import ClusterDirectory
from penstock.cluster.metadata import Change, MetadataStore, Unavailable, Versioned
from penstock.cluster.partitions import NOBODY, Member, PartitionKey, PartitionState
from penstock.cluster.topics import Topic
from penstock.log.leftovers import Leftover
from penstock.log.partition import PartitionLog
from penstock.log.pool import MemoryExhausted
from penstock.log.segment import Segment
from penstock.log.store import PartitionPlace
from penstock.replication import sabotage
from penstock.replication.channel import Channel, Network
from penstock.replication.elections import Election, Elections
from penstock.replication.following import Attachment, Inbound
from penstock.replication.frames import MalformedFrame
from penstock.replication.leadership import Leadership
from penstock.replication.link import Link
from penstock.replication.replica import Replica
from penstock.wire.errors import ErrorCode, KafkaError

log = logging.getLogger(__name__)

VERSION: Final = 2
TICK: Final = 0.025
HEARTBEAT: Final = 0.05
RETRY: Final = 0.1
PATROL: Final = 0.25
REOPEN: Final = 2.0
"""Seconds before a replica that could not be opened is tried again."""
IN_DOUBT: Final = 1.0
"""Seconds for which clients are not sent to a lost leader; by then there is another, or it is back."""
PARKING: Final = 64 << 20
"""Bytes of records that may wait for memory on a backup, of all partitions together (rule R10)."""
COMPLAINT: Final = 1.0
"""Seconds between two complaints of the clock: what fails at a tick mostly fails at the next one too."""
NAMED: Final = 10
"""Directories that a warning names; of more it says how many."""
READ_AHEAD: Final = 8 << 20
"""Of a segment that a backup copies from disk: chunks that the event loop then finds in the page cache."""
HESITATION: Final = 1.0
"""Seconds for which a leader that hands over serves nobody while etcd doesn't answer."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait before acting; seconds."""

    suspicion: float = 0.3
    """Silence of a leader, or of a backup, that counts as its death."""
    stall: float = 2.0
    """A backup's acknowledgements may stand still for this long."""
    hold_down: float = 1.0
    """After dropping a backup, before adding one; and before leadership goes home (rule R10)."""
    vacancy: float = 1.0
    """Without a leader and a leader's lease, before standing for it unasked."""
    neglect: float = 5.0
    """In the set, but not attached by a leader that has a lease, before standing against it: one that works
    would have attached us, or dropped us, by then."""


class WriteBehindLike(Protocol):
    def save_state(self, partition: PartitionLog) -> None: ...


class Store(Protocol):
    """What replication needs of the broker's logs."""

    incarnation: int

    @property
    def write_behind(self) -> WriteBehindLike: ...

    def open(self, places: list[PartitionPlace]) -> list[PartitionLog]: ...

    async def close_partition(self, partition: PartitionLog, *, delete: bool) -> None: ...

    async def find_leftovers(self) -> dict[PartitionKey, Leftover]: ...

    async def keep_leftover(self, leftover: Leftover) -> None: ...

    async def delete_leftover(self, topic: str, key: PartitionKey) -> None: ...

    def truncate(self, partition: PartitionLog, offset: int) -> None: ...

    def reset(self, partition: PartitionLog, offset: int) -> None: ...

    def follow_log_start(self, partition: PartitionLog, offset: int) -> None: ...


class Replicator:
    """See the module. A `Listener` of the directory."""

    def __init__(
        self,
        *,
        broker_id: int,
        directory: ClusterDirectory,
        metadata: MetadataStore,
        store: Store,
        network: Network,
        patience: Patience | None = None,
        demand: Callable[[], float] = lambda: 0.0,
        on_leading: Callable[[PartitionLog], None] = lambda _: None,
        on_ended: Callable[[PartitionLog], None] = lambda _: None,
        on_topic: Callable[[Topic], None] = lambda _: None,
    ) -> None:
        self.broker_id = broker_id
        self.directory = directory
        self.store = store
        self.network = network
        self.demand = demand
        """How long we were busy so far, in seconds."""
        self.replicas: dict[PartitionKey, Replica] = {}
        self.links: dict[int, Link] = {}
        self.elections = Elections()
        self.parked = 0
        """Bytes that wait for memory, counted anew at every tick."""
        self.parking = PARKING
        self.shrinks = 0
        self.growths = 0
        self._metadata = metadata
        self._patience = patience or Patience()
        self._on_leading = on_leading
        self._on_ended = on_ended
        self._on_topic = on_topic
        self._lost: dict[PartitionKey, tuple[int, float]] = {}
        """Leaders that this broker has lost, and when."""
        self._unopened: dict[bytes, float] = {}
        """Topics with replicas that could not be opened, and when to try again."""
        self._closing: set[PartitionKey] = set()
        """Replicas that are no longer here, but whose files are."""
        self._leftovers: dict[PartitionKey, Leftover] = {}
        """Logs that were found at the start and never opened since: of partitions that are elsewhere."""
        self._leftovers_news = asyncio.Event()
        self._inbound: dict[Inbound, None] = {}  # not a set: simulations want one order
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self.now: Callable[[], float] = self._loop.time
        self._complained_at = -COMPLAINT
        self._stopping = False
        self.stopped = False
        self._stop_listening: Callable[[], None] | None = None
        self.port = 0

    # Life

    async def listen(self, address: tuple[str, int]) -> None:
        self.port, self._stop_listening = await self.network.listen(address, self._accept)

    def start(self) -> None:
        """Take part. The directory has its first whole picture."""
        for rule in sorted(sabotage.BROKEN):
            log.critical("PENSTOCK_BREAK=%s: this broker LOSES RECORDS on purpose, for a test", rule)
        self.directory.listeners.append(self)
        for topic in list(self.directory.by_name.values()):
            self.topic_changed(topic)
        self._spawn(self._clear_leftovers())
        self._spawn(self._tick())
        self._spawn(self._patrol())

    async def stop(self) -> None:
        self._stopping = True
        if self in self.directory.listeners:  # news of a move would delete a log that is being closed
            self.directory.listeners.remove(self)
        if self._stop_listening is not None:
            self._stop_listening()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(link.close() for link in self.links.values()))
        # A catch-up has a connection of its own: nothing may come in after the logs are said to be whole.
        self.stopped = True
        for replica in self.replicas.values():
            replica.attachment = None
        for inbound in list(self._inbound):
            inbound.channel.close()

    async def leave(self, timeout: float = 3.0) -> None:
        """Before a clean stop: hand every leadership over that somebody can take."""
        self._stopping = True
        led = [replica for replica in self.replicas.values() if replica.leadership is not None]
        turns = asyncio.Semaphore(16)

        async def give(replica: Replica) -> None:
            async with turns:
                while replica.leadership is not None and self._successor(replica.leadership) is not None:
                    if await self.hand_over(replica, None, f"broker {self.broker_id} stops"):
                        return
                    await asyncio.sleep(0.02)

        if led:  # those that take longer are ended by `stop`
            await asyncio.wait([self._spawn(give(replica)) for replica in led], timeout=timeout)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # What the directory says

    def topic_changed(self, topic: Topic) -> None:
        topic_id = topic.topic_id.bytes
        places = []
        for index in range(len(topic.partitions)):
            key = (topic_id, index)
            here = key in self.replicas or key in self._closing
            if self.directory.is_on(key, self.broker_id) and not here:
                places.append(PartitionPlace(topic.name, topic_id, index, topic.log_config, -1, lead=False))
        for partition in self._open(topic, places) if places else ():
            if sabotage.TRUSTS_EMPTY_LOGS:
                partition.storage_id = 1
            partition.on_synced = self._synced  # never a commit: that is the leader's to say
            key = (topic_id, partition.partition)
            self.replicas[key] = Replica(self.broker_id, partition, self.now())
            self._leftovers.pop(key, None)
        self._on_topic(topic)
        for index in range(len(topic.partitions)):
            replica = self.replicas.get((topic_id, index))
            if replica is not None:
                self._react(replica)

    def _open(self, topic: Topic, places: list[PartitionPlace]) -> list[PartitionLog]:
        """A full disk, say, is this topic's trouble and no other's, and may be over soon: the patrol asks."""
        try:
            opened = self.store.open(places)
        except Exception:
            log.exception("%s can't be opened here for now; it is tried again", topic.name)
            self._unopened[topic.topic_id.bytes] = self.now() + REOPEN
            return []
        self._unopened.pop(topic.topic_id.bytes, None)
        return opened

    def _reopen(self, now: float) -> None:
        for topic_id in [topic_id for topic_id, due in self._unopened.items() if now >= due]:
            del self._unopened[topic_id]  # if it fails again it is put back
            topic = self.directory.by_id.get(topic_id)
            if topic is not None:
                self.topic_changed(topic)

    def topic_deleted(self, topic: Topic) -> None:
        for key in [key for key in self.replicas if key[0] == topic.topic_id.bytes]:
            self._close_replica(key)

    def partition_changed(self, key: PartitionKey) -> None:
        topic = self.directory.by_id.get(key[0])
        if topic is None:
            return
        if key in self._leftovers:
            self._leftovers_news.set()
        replica = self.replicas.get(key)
        if replica is None:
            if self.directory.is_on(key, self.broker_id):
                self.topic_changed(topic)
            else:
                self._on_topic(topic)
            return
        self._on_topic(topic)
        self._react(replica)

    def brokers_changed(self) -> None:
        """Addresses are looked up when they are needed; leases that ran out are seen on patrol."""

    def _close_replica(self, key: PartitionKey) -> None:
        self._spawn(self._close(self._take_away(key)))

    def _take_away(self, key: PartitionKey) -> Replica:
        """Nobody can attach it any more; its files are still there."""
        replica = self.replicas.pop(key)
        self._end(replica)
        if replica.attachment is not None:
            replica.attachment.inbound.leave(replica, replica.attachment)
            replica.attachment = None
        self._closing.add(key)
        return replica

    async def _let_go(self, replica: Replica) -> None:
        """It was moved away: delete it, unless that is old news. By now it may be placed here again, and its
        log be in the set. So the key is read anew, after nobody can attach it any more: whoever isn't listed
        or placed then can't be listed with this log later."""
        if await self._is_elsewhere(replica.key):
            await self._close(replica)
            return
        self._closing.discard(replica.key)
        self.replicas[replica.key] = replica
        self.topic_changed(self.directory.by_id[replica.key[0]])

    async def _is_elsewhere(self, key: PartitionKey) -> bool:
        """Waits for etcd. One that has lost its data, or gone back, is not believed."""
        while key[0] in self.directory.by_id:
            with contextlib.suppress(Unavailable):
                found = await self._metadata.get(partitions.path_of(key))
                if found is not None and self._is_news(key, found):
                    self.directory.note_state(key, partitions.decode(found))
                    return key[0] not in self.directory.by_id or not self.directory.is_on(key, self.broker_id)
            await asyncio.sleep(RETRY)
        return True

    def _is_news(self, key: PartitionKey, found: Versioned) -> bool:
        known = self.directory.state_of(key)
        return not self.directory.foreign and (known is None or found.revision >= known.revision)

    async def _close(self, replica: Replica) -> None:
        """It takes its directories with it: one that is placed here again meanwhile has to wait."""
        try:
            await self.store.close_partition(replica.log, delete=True)
        finally:
            self._closing.discard(replica.key)
        topic = self.directory.by_id.get(replica.key[0])
        if topic is not None:
            self.topic_changed(topic)

    # Replicas that were moved away while this broker was down

    async def _clear_leftovers(self) -> None:
        """Nobody opens them, and nothing else would delete them."""
        found = await self.store.find_leftovers()
        found = {k: left for k, left in found.items() if k not in self.replicas and k not in self._closing}
        known = {key: left for key, left in found.items() if key[0] in self.directory.by_id}
        _warn_of({key: left for key, left in found.items() if key not in known})
        self._leftovers = {key: left for key, left in known.items() if not left.kept}
        for key in known.keys() - self._leftovers.keys():
            self._warn_of_kept(key, known[key])
        while self._leftovers:
            self._leftovers_news.clear()
            for key in list(self._leftovers):
                try:
                    if self._is_ahead(key):
                        await self._keep_leftover(key)
                    elif self._can_spare(key):
                        await self._clear_leftover(key)
                except Exception:
                    log.exception("what is left of %s-%d could not be deleted", key[0].hex(), key[1])
            await self._leftovers_news.wait()

    def _is_ahead(self, key: PartitionKey) -> bool:
        """A promise of a later epoch than the key's is from a future that this etcd, restored from a backup,
        has forgotten."""
        state, left = self.directory.state_of(key), self._leftovers.get(key)
        return state is not None and left is not None and left.promised_epoch > state.epoch

    async def _keep_leftover(self, key: PartitionKey) -> None:
        """For good: a few elections more, and the epoch would tell nothing."""
        left = self._leftovers[key]
        await self.store.keep_leftover(left)
        if self._leftovers.pop(key, None) is not None:
            self._warn_of_kept(key, left)

    def _warn_of_kept(self, key: PartitionKey, left: Leftover) -> None:
        log.warning(
            "%s-%d is elsewhere, but what is left of it here knows a later epoch than etcd does, as if "
            "that was restored from a backup: it stays, for you to decide, in %s",
            self.directory.by_id[key[0]].name,
            key[1],
            ", ".join(map(str, left.directories)),
        )

    def _can_spare(self, key: PartitionKey) -> bool:
        state, left = self.directory.state_of(key), self._leftovers.get(key)
        if state is None or left is None or key[0] not in self.directory.by_id:
            return False
        return partitions.can_spare(state, self.broker_id, left.promised_epoch, self.directory.registered)

    async def _clear_leftover(self, key: PartitionKey) -> None:
        """As when it is let go: nobody can open it from here on, and the key is read after that, from an etcd
        that answers and is to be believed."""
        self._closing.add(key)
        try:
            if await self._is_elsewhere(key) and self._can_spare(key):
                name = self.directory.by_id[key[0]].name
                log.info("%s-%d was moved away while this broker was down: deleting it", name, key[1])
                await self.store.delete_leftover(name, key)
                del self._leftovers[key]
        finally:
            self._closing.discard(key)
        topic = self.directory.by_id.get(key[0])
        if topic is not None and self.directory.is_on(key, self.broker_id):
            self.topic_changed(topic)

    # Roles

    def _react(self, replica: Replica) -> None:
        """What the cluster agreed on, applied to one replica. Called as often as one likes."""
        state = self.directory.state_of(replica.key)
        led = replica.leadership
        if led is not None and state is not None:
            if state.epoch > led.epoch:
                self._end(replica)
            else:
                if state.epoch == led.epoch:
                    self._keep_leading(replica, led, state)
                return
        if replica.swapping:
            return
        if state is not None and self.broker_id not in state.brokers:
            self._spawn(self._let_go(self._take_away(replica.key)))
            return
        if self._stopping:
            return
        if state is not None and state.epoch != replica.knows_epoch:
            replica.knows_epoch, replica.knows_epoch_since = state.epoch, self.now()
        if replica.log.damage is not None:
            if state is not None and state.leader == self.broker_id:
                self._spawn(self._resign(replica))
            return
        member = replica.member
        self._note_copied(replica, state)
        if state is None:
            placed = self.directory.placed(replica.key)
            idle = self.now() - replica.idle_since > self._patience.vacancy
            if placed and (placed[0] == self.broker_id or (idle and placed[0] not in self.directory.brokers)):
                self._spawn(self._stand(replica, "first leader"))
        elif state.leader == self.broker_id:
            promised = replica.log.control.promised_epoch
            if not state.has(*member):
                if state.is_only_on(self.broker_id):
                    self._spawn(self._stand(replica, "only replica, its log was lost in part"))
                else:
                    self._spawn(self._resign(replica))
            elif state.epoch == replica.standing_for or promised < state.epoch:
                self._lead(replica, state)
            else:
                self._spawn(self._stand(replica, f"broker {self.broker_id} restarted"))
        elif state.leader == NOBODY:
            if state.declared == self.broker_id:
                log.critical("%r: leading by an operator's word; what is not here is lost", replica.log)
                self._spawn(self._stand(replica, state.reason))
            elif state.has(*member):
                self._spawn(self._stand(replica, "no leader"))
        elif not replica.follows(state) and state.has(*member):
            reason = self._why_leave(replica, state)
            if reason is not None:
                self._spawn(self._stand(replica, reason, without=state.leader))

    def _why_leave(self, replica: Replica, state: PartitionState) -> str | None:
        """Why a member without a leader's attention should not wait for it any longer."""
        alone = self.now() - max(replica.idle_since, replica.knows_epoch_since)
        if state.leader not in self.directory.brokers:
            return f"broker {state.leader} lost its lease" if alone > self._patience.vacancy else None
        return f"broker {state.leader} does not lead" if alone > self._patience.neglect else None

    def _lead(self, replica: Replica, state: PartitionState) -> None:
        partition = replica.log
        if not partition.promise(state.epoch):
            return
        replica.attachment = None
        partition.begin_epoch(state.epoch)
        partition.replicated = True
        gave_up = state.is_only_on(self.broker_id) or state.unclean_since == state.epoch
        if gave_up and partition.lost_up_to > partition.log_end:  # no offset means two records (rule R9)
            try:
                partition.skip_to(partition.lost_up_to)
            except MemoryExhausted as error:
                log.warning("%r can't be led yet: %s", partition, error)
                return  # the patrol comes back to it
        led = replica.leadership = Leadership(partition, state, replica.member, self.now())
        partition.on_synced = lambda _: led.advance()
        led.advance()
        partition.excuse_gaps()  # what came just before was refused: nobody led here
        partition.serve(self.store.incarnation)
        self.store.write_behind.save_state(partition)
        self.elections.note(Election(self.now(), replica.key, repr(partition), state.epoch, state.reason))
        log.info(
            "%r: leading in epoch %d from offset %d (%s)",
            partition,
            state.epoch,
            led.start_offset,
            state.reason,
        )
        self._connect(replica, led)
        self._drop_lost(replica, led)
        self._on_leading(partition)

    def _connect(self, replica: Replica, led: Leadership) -> None:
        for broker in led.backups:
            link = self.links.get(broker)
            if link is None:
                link = self.links[broker] = Link(self, broker)
            if link.led.get(replica.key) is not led:
                link.add(replica.key, led)

    def _keep_leading(self, replica: Replica, led: Leadership, state: PartitionState) -> None:
        before = set(led.backups)
        self.shrinks += len(state.in_sync) < len(led.known)
        self.growths += len(state.in_sync) > len(led.known)
        led.note(state, self.now())
        for broker in before - led.backups.keys():
            self.links[broker].remove(replica.key)
        self._connect(replica, led)

    def _end(self, replica: Replica) -> None:
        """Leadership is over: somebody else has a higher epoch, or this replica goes."""
        led, replica.leadership = replica.leadership, None
        replica.idle_since = self.now()
        if led is None:
            return
        partition = replica.log
        for link in self.links.values():
            if link.led.get(replica.key) is led:
                link.remove(replica.key)
        partition.on_synced = self._synced
        partition.short_of_replicas = False
        partition.step_down()
        log.info("%r: no longer leading (epoch %d)", partition, led.epoch)
        self._on_ended(partition)

    # Elections

    async def _stand(self, replica: Replica, reason: str, without: int = NOBODY) -> None:
        if replica.swapping or replica.leadership is not None or self._stopping:
            return
        # No promise while etcd is away: it could not be kept to anybody's use, and the leader may be back.
        state = await self._fresh(replica)
        if replica.leadership is not None or replica.follows(state) or self._stopping:
            return
        expected = (without,) if without != NOBODY else (NOBODY, self.broker_id)
        if (state is not None or without != NOBODY) and (state is None or state.leader not in expected):
            self._react_if_here(replica)  # it was settled while we hesitated, perhaps for us
            return
        self._note_copied(replica, state)  # of which we may hear only now
        placed = self.directory.placed(replica.key)
        promised = replica.log.control.promised_epoch
        proposal = partitions.stand(state, placed, replica.member, promised, reason, without=without)
        if proposal is None:
            return
        # From here on the old leader gets no acknowledgement of ours, whatever becomes of the swap.
        replica.log.promise(proposal.epoch)
        self.store.write_behind.save_state(replica.log)
        replica.attachment = None
        replica.standing_for = proposal.epoch
        await self._swap(replica, state, proposal)

    def _note_copied(self, replica: Replica, state: PartitionState | None) -> None:
        """A log that another leader has listed has all that anybody was shown, whatever it had lost before:
        no offset is to be left out (rule R9)."""
        if state is not None and state.has(*replica.member) and state.leader not in (self.broker_id, NOBODY):
            replica.log.lost_up_to = 0

    async def _fresh(self, replica: Replica) -> PartitionState | None:
        """The key as it is now; waits for etcd."""
        replica.swapping = True
        try:
            while self.replicas.get(replica.key) is replica and not replica.follows(
                self.directory.state_of(replica.key)
            ):
                try:
                    found = await self._metadata.get(partitions.path_of(replica.key))
                    if found is not None:
                        self.directory.note_state(replica.key, partitions.decode(found))
                    break
                except Unavailable:
                    await asyncio.sleep(RETRY)
        finally:
            replica.swapping = False
        return self.directory.state_of(replica.key)

    async def _resign(self, replica: Replica) -> None:
        state = self.directory.state_of(replica.key)
        damaged = replica.log.damage is not None
        proposal = partitions.resign(state, replica.member, damaged=damaged) if state is not None else None
        if proposal is not None and state is not None:
            log.error("%r: %s; leaving it to the others", replica.log, proposal.reason)
            await self._swap(replica, state, proposal)

    async def _swap(
        self,
        replica: Replica,
        state: PartitionState | None,
        proposal: PartitionState,
        *,
        later: PartitionState | None = None,
    ) -> None:
        """Swap, and don't return before it is known what the key says now (rule R2).

        `later` is proposed instead after some time without an answer; the revision lets one of them win.
        """
        replica.swapping = True
        key, path = replica.key, partitions.path_of(replica.key)
        expected = 0 if state is None else state.revision
        began = self.now()
        try:
            while self.replicas.get(key) is replica:
                if later is not None and self.now() - began > HESITATION:
                    proposal = later
                try:
                    known = self.directory.state_of(key)
                    if known is None or known.revision <= expected:
                        await self._metadata.swap([Change(path, partitions.encode(proposal), expected)])
                    found = await self._metadata.get(path)
                    if found is not None and found.revision > expected:
                        self.directory.note_state(key, partitions.decode(found))
                        break
                except Unavailable:
                    pass
                known = self.directory.state_of(key)
                if known is not None and known.revision > expected:
                    break
                await asyncio.sleep(RETRY)
        finally:
            replica.swapping = False
        self._react_if_here(replica)

    def _react_if_here(self, replica: Replica) -> None:
        """What was heard while it was `swapping` has yet to be acted on, and isn't told again."""
        if self.replicas.get(replica.key) is replica:
            self._react(replica)

    def fenced(self, key: PartitionKey, led: Leadership, promised: int) -> None:
        """A backup has promised a higher epoch than ours to somebody, perhaps to nobody that won."""
        replica = self.replicas.get(key)
        if replica is not None and replica.leadership is led and not replica.swapping:
            self._spawn(self._look_again(replica, led, promised))

    async def _look_again(self, replica: Replica, led: Leadership, promised: int) -> None:
        """Still ours? Then lead on above what was promised. Else the key tells who leads."""
        if replica.swapping:
            return
        replica.swapping = True
        try:
            found = await self._metadata.get(partitions.path_of(replica.key))
        except Unavailable:
            return  # the next frame is refused as well
        finally:
            replica.swapping = False
        if found is None or replica.leadership is not led:
            return
        state = partitions.decode(found)
        self.directory.note_state(replica.key, state)
        if replica.leadership is not led or state.leader != self.broker_id or state.epoch != led.epoch:
            return
        highest = max(promised, replica.log.control.promised_epoch)
        proposal = partitions.stand(
            state, state.replicas, replica.member, highest, f"a backup had promised epoch {promised}"
        )
        if proposal is not None:
            replica.log.promise(proposal.epoch)
            replica.standing_for = proposal.epoch
            await self._swap(replica, state, proposal)

    # Handing over

    async def hand_over(self, replica: Replica, target: int | None, reason: str) -> bool:
        """Let another in-sync replica lead; nothing acknowledged is lost, no append is left half-way."""
        led = replica.leadership
        if led is None or led.handing_over or replica.swapping:
            return False
        if target is None:
            target = self._successor(led)
        member = next((m for m in led.known if m.broker == target), None)
        backup = led.backups.get(target) if target is not None else None
        if member is None or backup is None or backup.storage != member.storage:
            return False
        led.handing_over = True
        try:
            await self._metadata.get(partitions.path_of(replica.key))  # with etcd away, don't even begin
        except Unavailable:
            led.handing_over = False
            self._drop_lost(replica, led)
            return False
        if replica.leadership is not led:  # deposed, or it stood again, while etcd was asked
            led.handing_over = False
            return False
        replica.log.leading = False
        try:
            deadline = self.now() + 1.0
            while backup.acked < replica.log.log_end:
                if self.now() > deadline or replica.leadership is not led or not backup.attached:
                    return False
                await asyncio.sleep(0.002)
            if not backup.attached:  # it has all there is, but it is gone: nobody would lead
                return False
            state = self.directory.state_of(replica.key)
            if state is None or state.epoch != led.epoch or replica.leadership is not led or replica.swapping:
                return False
            assert target is not None
            proposal = partitions.appoint(state, target, replica.log.control.promised_epoch, reason)
            if proposal is None:
                return False
            # Without an answer it is not known who leads. To serve on is safe: if the target was made leader,
            # nothing is committed without it, and it acknowledges nothing any more.
            doubt = self._loop.call_later(HESITATION, self._serve_on, replica, led)
            kept = replace(state, reason=f"not handed over to broker {target}: etcd was away")
            try:
                await self._swap(replica, state, proposal, later=kept)
            finally:
                doubt.cancel()
            return replica.leadership is not led
        finally:
            led.handing_over = False
            self._serve_on(replica, led)
            self._drop_lost(replica, led)

    @staticmethod
    def _serve_on(replica: Replica, led: Leadership) -> None:
        if replica.leadership is led and not replica.log.leading:
            replica.log.excuse_gaps()  # what came meanwhile was refused
            replica.log.leading = True

    def _successor(self, led: Leadership) -> int | None:
        """The member that has most; the preferred one among equals, last one that it is moved away from."""
        order = {broker: at for at, broker in enumerate(led.replicas)}
        candidates = [
            (backup.acked, -order.get(backup.broker, len(order)), backup.broker)
            for backup in led.backups.values()
            if backup.streaming and (backup.broker, backup.storage) in led.known
        ]
        return max(candidates)[2] if candidates else None

    # The in-sync set

    async def _change_set(
        self, replica: Replica, led: Leadership, members: frozenset[Any], reason: str
    ) -> None:
        state = self.directory.state_of(replica.key)
        if replica.swapping or state is None or state.epoch != led.epoch or replica.leadership is not led:
            return
        if led.handing_over:
            return
        led.propose(members)
        # Under load a newcomer is always a little behind: the proposal holds the watermark until it isn't.
        replica.swapping = True
        deadline = self.now() + self._patience.suspicion
        while not led.complete(members) and self.now() < deadline:
            if replica.leadership is not led or self._lost_of(members):
                break
            await asyncio.sleep(0.001)
        replica.swapping = False
        if replica.leadership is led and led.complete(members):
            state = self.directory.state_of(replica.key)
            if state is not None and state.epoch == led.epoch and frozenset(state.in_sync) == led.known:
                away = {member.broker for member in led.known - members} - set(led.replicas)
                await self._swap(replica, state, partitions.with_members(state, members, reason))
                self._attach_anew(led, away)
        else:
            replica.shrunk_at = self.now()  # not now; holding the watermark again and again would be worse
        if replica.leadership is led:
            led.settled()
            self._connect(replica, led)
            self._drop_lost(replica, led)

    def _attach_anew(self, led: Leadership, away: set[int]) -> None:
        """Brokers it was moved away from may have deleted their logs, even if it is wanted there again by
        now: what they had doesn't count before the next handshake."""
        for broker in sorted(away & led.backups.keys()):
            led.backups[broker].detach()
            if self.links[broker].led.get(led.key) is led:
                self.links[broker].add(led.key, led)

    def _review(self, replica: Replica, led: Leadership, now: float, silent: frozenset[int]) -> None:
        """Drop who holds up commits or is no longer wanted, add who has caught up."""
        if replica.swapping or led.handing_over:
            return
        gone = led.missing(now, silent, self._patience.stall)
        if gone:
            replica.shrunk_at = now
            names = ", ".join(str(member.broker) for member in sorted(gone))
            log.warning("%r: dropping broker %s from the in-sync set", replica.log, names)
            self._spawn(self._change_set(replica, led, led.known - gone, f"broker {names} out of sync"))
            return
        moved = led.moved_away()
        if moved:  # they did not fall behind: nobody is held down for it
            names = ", ".join(str(member.broker) for member in sorted(moved))
            log.info("%r: moved away from broker %s", replica.log, names)
            self._spawn(self._change_set(replica, led, led.known - moved, f"moved away from broker {names}"))
            return
        joining = led.joining(now, silent, self._patience.suspicion)
        if joining and now - replica.shrunk_at > self._patience.hold_down:
            names = ", ".join(str(member.broker) for member in sorted(joining))
            replaced = {member.broker for member in joining}
            kept = frozenset(member for member in led.known if member.broker not in replaced)
            self._spawn(self._change_set(replica, led, kept | joining, f"broker {names} in sync"))

    def _drop_lost(self, replica: Replica, led: Leadership) -> None:
        """Whoever was lost before this began to lead, or during a swap or a hand-over, is not lost again:
        without this, commits would wait for the patrol to find it silent."""
        lost = self._lost_of(led.known)
        if lost and replica.leadership is led and not self._stopping:
            self._review(replica, led, self.now(), lost)

    def _lost_of(self, members: Iterable[Member]) -> frozenset[int]:
        links = self.links
        return frozenset(m.broker for m in members if m.broker in links and links[m.broker].is_lost)

    def has_left(self, broker: int) -> bool:
        """Whether it had a lease since we started, and has none now."""
        return broker in self.directory.left

    # What links and leaders say

    def link_lost(self, link: Link) -> None:
        """The connection to a backup closed, or one that left can't be reached: it acknowledges nothing."""
        if self._stopping:
            return
        now = self.now()
        for key, led in list(link.led.items()):
            replica = self.replicas.get(key)
            if replica is not None and replica.leadership is led:
                self._review(replica, led, now, frozenset((link.broker,)))

    def inbound_opened(self, inbound: Inbound) -> None:
        self._inbound[inbound] = None

    def inbound_lost(self, inbound: Inbound) -> None:
        self._inbound.pop(inbound, None)
        if inbound.live and not self._stopping:
            self._suspect(inbound, "closed its connection")

    def _suspect(self, inbound: Inbound, why: str) -> None:
        attached = [r for r in self.replicas.values() if r.attachment and r.attachment.inbound is inbound]
        for replica in attached:
            replica.attachment = None
            replica.idle_since = self.now()
            self._lost[replica.key] = (inbound.broker, replica.idle_since)
            reason = f"broker {inbound.broker} {why}"
            self._loop.call_later(self._turn(replica), self._stand_against, replica, inbound.broker, reason)

    def doubts(self, key: PartitionKey, leader: int) -> bool:
        """Whether this broker has just lost that leader: a client that is told of it would wait for it."""
        lost, at = self._lost.get(key, (NOBODY, 0.0))
        return lost == leader and self.now() - at < IN_DOUBT

    def _turn(self, replica: Replica) -> float:
        """In-sync replicas stand one after the other, so that one swap mostly does."""
        state = self.directory.state_of(replica.key)
        others = [m.broker for m in state.in_sync if m.broker != state.leader] if state else []
        return 0.05 * others.index(self.broker_id) if self.broker_id in others else 0.0

    def _stand_against(self, replica: Replica, leader: int, reason: str) -> None:
        if replica.attachment is None and self.replicas.get(replica.key) is replica:
            self._spawn(self._stand(replica, reason, without=leader))

    def attached(self, replica: Replica, attachment: Attachment) -> None:
        """A leader with an epoch that we promised to follow."""
        if replica.leadership is not None:
            self._end(replica)
        replica.attachment = attachment
        self._lost.pop(replica.key, None)
        replica.log.on_synced = self._synced

    def _synced(self, partition: PartitionLog) -> None:
        replica = self.replicas.get((partition.topic_id, partition.partition))
        if replica is not None and replica.attachment is not None and replica.attachment.begun:
            replica.attachment.inbound.acknowledge(replica, replica.attachment)

    def hello(self, broker: int, lane: str) -> Any:
        return {
            "version": VERSION,
            "cluster": self.directory.cluster_id,
            "broker": self.broker_id,
            "to": broker,
            "incarnation": self.store.incarnation,
            "lane": lane,
        }

    def check_hello(self, hello: Any) -> None:
        if (hello["version"], hello["cluster"], hello["to"]) != (
            VERSION,
            self.directory.cluster_id,
            self.broker_id,
        ):
            raise MalformedFrame(f"{hello} came to broker {self.broker_id} of {self.directory.cluster_id}")

    def address_of(self, broker: int) -> tuple[str, int] | None:
        found = self.directory.addresses.get(broker)
        return None if found is None else (found.replication_host, found.replication_port)

    async def read_cold(self, segment: Segment, offset: int, limit: int) -> memoryview | bytes:
        cached = segment.read_cached(offset, limit, segment.size)
        if cached:
            return cached
        return await self._loop.run_in_executor(
            None, segment.read_cold, offset, limit, segment.size, READ_AHEAD
        )

    def _accept(self, channel: Channel) -> Inbound:
        return Inbound(self, channel)

    async def told(self, partition: PartitionLog, term: int, timeout: float = 5.0) -> None:
        """Wait until every in-sync backup knows the log start (rule R11), or raise why that can't be said.

        `term` is the log's when the log start was moved: whoever led since may have another one.
        """
        replica = self.replicas.get((partition.topic_id, partition.partition))
        deadline = self.now() + timeout
        while True:
            led = replica.leadership if replica is not None else None
            if led is None or partition.term != term:
                raise KafkaError(ErrorCode.not_leader_or_follower, f"{partition} changed hands meanwhile")
            start = partition.log_start
            behind = [
                member
                for member in led.members - {led.me}
                if (backup := led.backups.get(member.broker)) is None or backup.start_acked < start
            ]
            if not behind:
                return
            if self.now() > deadline:
                names = ", ".join(str(member.broker) for member in behind)
                raise KafkaError(ErrorCode.request_timed_out, f"broker {names} has yet to hear of it")
            await asyncio.sleep(0.005)

    # The clock

    async def _tick(self) -> None:
        """Heartbeats, and who is silent."""
        before = self.now()
        suspicion = self._patience.suspicion
        while True:
            await asyncio.sleep(TICK)
            now = self.now()
            if now - before > suspicion / 2:
                # We were away ourselves (stopped, starved): what the others said still waits in the sockets.
                log.warning("this broker stood still for %.2f s", now - before)
                for link in self.links.values():
                    link.heard_at = now
                for inbound in self._inbound:
                    inbound.heard_at = now
            before = now
            for link in list(self.links.values()):
                self._try(link.tick, now, HEARTBEAT)
                self._try(self._watch_backup, link, now, suspicion)
            for inbound in list(self._inbound):
                if now - inbound.heard_at > suspicion:
                    self._inbound.pop(inbound, None)
                    self._try(self._suspect, inbound, f"silent for {now - inbound.heard_at:.2f} s")
                    inbound.channel.close()
            waiting = [r for r in self.replicas.values() if r.attachment is not None and r.attachment.parked]
            for replica in waiting:
                self._try(self._retry, replica)
            self.parked = sum(r.attachment.parked_bytes for r in waiting if r.attachment is not None)

    def _try(self, act: Callable[..., None], *of: Any) -> None:
        """One link's or one partition's failure must not stop the clock of all others."""
        try:
            act(*of)
        except Exception:
            if self.now() - self._complained_at >= COMPLAINT:
                self._complained_at = self.now()
                log.exception("%r failed for %r; it is tried again", act, of[0])

    @staticmethod
    def _retry(replica: Replica) -> None:
        if replica.attachment is not None:
            replica.attachment.inbound.retry(replica, replica.attachment)

    def _watch_backup(self, link: Link, now: float, suspicion: float) -> None:
        quiet = link.is_up and now - link.heard_at > suspicion
        if not quiet:
            return
        for key, led in list(link.led.items()):
            replica = self.replicas.get(key)
            if replica is not None and replica.leadership is led:
                if any(member.broker == link.broker for member in led.known):
                    led.suspect(True)
                self._review(replica, led, now, frozenset((link.broker,)))
        link.hang_up()

    async def _patrol(self) -> None:
        """What no event tells: vacancies, stalls, backups that have caught up, leaderships to take home."""
        while True:
            await asyncio.sleep(PATROL)
            now = self.now()
            silent = frozenset(
                broker
                for broker, link in self.links.items()
                if now - link.heard_at > self._patience.suspicion
            )
            self._try(self._reopen, now)
            for link in list(self.links.values()):
                self._try(link.nudge, now)
            for replica in list(self.replicas.values()):
                self._try(self._look_after, replica, now, silent)

    def _look_after(self, replica: Replica, now: float, silent: frozenset[int]) -> None:
        led = replica.leadership
        if led is None:
            self._react(replica)
            return
        self._review(replica, led, now, silent)
        doubtful = any(member.broker in silent for member in led.known - {led.me})
        led.suspect(doubtful)
        self._take_home(replica, led, now)

    def _take_home(self, replica: Replica, led: Leadership, now: float) -> None:
        """Leadership belongs to the first replica, whenever that is in sync and has been for a while. One
        that it is moved away from gives way to the next that has a lease: the first may be gone for good."""
        wanted = led.replicas[:1] if self.broker_id in led.replicas else led.replicas
        home = next((broker for broker in wanted if broker in self.directory.brokers), self.broker_id)
        if home == self.broker_id or replica.swapping or self._stopping:
            return
        quiet = now - max(led.since, replica.shrunk_at) > 2 * self._patience.hold_down
        backup = led.backups.get(home)
        if quiet and backup is not None and backup.streaming and (home, backup.storage) in led.known:
            role = "is" if home == led.replicas[0] else "stands in for"
            self._spawn(self._go_home(replica, home, f"broker {home} {role} its preferred leader"))

    async def _go_home(self, replica: Replica, home: int, reason: str) -> None:
        await self.hand_over(replica, home, reason)


def _warn_of(unknown: dict[PartitionKey, Leftover]) -> None:
    """Perhaps the only copies of what an etcd restored from a backup doesn't know: for people to decide."""
    if not unknown:
        return
    places = sorted({str(directory.parent) for left in unknown.values() for directory in left.directories})
    log.warning(
        "the cluster does not know the topics of %d partitions that take %.1f MiB here: they stay. If they "
        "were deleted while this broker was down, and etcd was not restored from a backup since, stop the "
        "broker and remove %s%s",
        len(unknown),
        sum(left.size for left in unknown.values()) / (1 << 20),
        ", ".join(places[:NAMED]),
        f" and {len(places) - NAMED} more" if len(places) > NAMED else "",
    )
