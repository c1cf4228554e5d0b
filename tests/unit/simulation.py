"""A cluster without sockets, threads or real time: the real replication code on a simulated network,
metadata store and clock. One seed, one schedule; thousands of them a minute.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import random
import shutil
import tempfile
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextvars import Context
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.broker.produce import committed
from penstock.cluster.directory import ClusterDirectory
from penstock.cluster.membership import BrokerInfo
from penstock.cluster.metadata import Change, Unavailable, Update, Versioned
from penstock.cluster.partitions import PartitionKey, PartitionState
from penstock.cluster.topics import CLUSTER_KEY
from penstock.log.partition import PartitionLog
from penstock.log.store import LogStore
from penstock.replication.channel import Channel, Handler
from penstock.replication.frames import HEAD, Kind
from penstock.replication.replicator import Patience, Replicator
from penstock.wire import batch
from penstock.wire.batch import Buffer
from penstock.wire.errors import ErrorCode
from penstock.wire.records import Record, decode_records, encode_batch

interpreted = pytest.mark.skipif(penstock.COMPILED, reason="patches what is compiled: `make pure` runs it")


class VirtualLoop(asyncio.BaseEventLoop):
    """Sleeping takes no time: the clock jumps to the next thing to do. Nothing comes from outside, so there
    is nothing to select from; what is due at the same moment is done in the order it was asked for."""

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self.virtual_now = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = itertools.count()

    def time(self) -> float:
        return self.virtual_now

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._count), timer))
        return timer

    def _run_once(self) -> None:
        ready, timers = self._ready, self._timers
        while timers and (not ready or timers[0][0] <= self.virtual_now):
            when, _, timer = heappop(timers)
            if not timer.cancelled():
                self.virtual_now = max(self.virtual_now, when)
                ready.append(timer)
        if not ready:
            raise RuntimeError("everybody waits for somebody else")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        """At once: a thread would take real time, which is another amount of virtual time in every run."""
        if isinstance(executor, _SlowDisk):
            return executor.run(self, func, *args)
        done = self.create_future()
        _do(done, func, *args)
        return done


def simulate(scenario: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(scenario)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        asyncio.set_event_loop(None)
        loop.close()


# Metadata


class Keys:
    """The one true store, behind every broker's view of it."""

    def __init__(self) -> None:
        self.revision = 0
        self.values = {CLUSTER_KEY: Versioned(CLUSTER_KEY, {"id": "sim"}, 0)}
        self.watchers: list[Callable[[Versioned], None]] = []

    def swap(self, changes: Sequence[Change]) -> bool:
        for change in changes:
            there = self.values.get(change.key)
            if (there.revision if there else 0) != change.expected:
                return False
        self.revision += 1
        for change in changes:
            entry = Versioned(change.key, json.loads(json.dumps(change.value)), self.revision)
            if change.value is None:
                self.values.pop(change.key, None)
            else:
                self.values[change.key] = entry
            for watcher in list(self.watchers):
                watcher(entry)
        return True

    def put(self, key: str, value: Any) -> None:
        there = self.values.get(key)
        self.swap([Change(key, value, there.revision if there else 0)])


class SimMetadata:
    """One broker's way to the store: slow, and at times away or without an answer."""

    def __init__(self, keys: Keys, chance: random.Random) -> None:
        self._keys = keys
        self._chance = chance
        self.away = False
        self.loses_answers = 0.0
        self.late = 0.0
        """Seconds by which its watch tells of changes later than others' do."""
        self.swaps = 0

    async def _trip(self) -> None:
        await asyncio.sleep(self._chance.uniform(0.0005, 0.005))
        if self.away:
            await asyncio.sleep(0.5)
            raise Unavailable("away")

    async def get(self, key: str) -> Versioned | None:
        await self._trip()
        found = self._keys.values.get(key)
        await self._trip()
        return found

    async def scan(self, prefix: str) -> list[Versioned]:
        await self._trip()
        return [entry for key, entry in sorted(self._keys.values.items()) if key.startswith(prefix)]

    async def swap(self, changes: Sequence[Change]) -> bool:
        await self._trip()
        self.swaps += 1
        if self._chance.random() < self.loses_answers:
            # It may be done now, later, or never; the caller can't tell.
            late = self._chance.choice([0.0, 0.3, 2.0, None])
            if late is not None:
                asyncio.get_running_loop().call_later(late, self._keys.swap, list(changes))
            await asyncio.sleep(0.5)
            raise Unavailable("no answer")
        done = self._keys.swap(changes)
        await self._trip()
        return done

    async def watch(self, prefix: str) -> AsyncGenerator[Update, None]:
        queue: asyncio.Queue[tuple[float, Versioned]] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def tell(entry: Versioned) -> None:
            queue.put_nowait((loop.time() + self.late + self._chance.uniform(0.001, 0.05), entry))

        self._keys.watchers.append(tell)
        try:
            yield Update(tuple(self._keys.values.values()), whole=True)
            while True:
                due, entry = await queue.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                while self.away:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                yield Update((entry,))
        finally:
            self._keys.watchers.remove(tell)

    async def close(self) -> None: ...


# Network


class SimEnd:
    """One end of a simulated connection."""

    def __init__(self, network: SimNetwork, here: int, there: int) -> None:
        self.network = network
        self.here, self.there = here, there
        self.handler: Handler | None = None
        self.peer: SimEnd | None = None
        self.open = True
        self.held_up = False
        """Nothing that is sent from here gets through; other connections are not touched."""
        self._due = 0.0
        self._under_way: deque[bytes] = deque()

    def send(self, buffers: Sequence[Buffer]) -> None:
        if self.open and self.peer is not None:
            self._under_way.append(b"".join(bytes(buffer) for buffer in buffers))
            loop = asyncio.get_running_loop()
            self._due = max(self._due, loop.time() + self.network.delay())
            loop.call_at(self._due, self._arrive)

    def _arrive(self) -> None:
        """As TCP does: nothing is lost while the connection lives, or overtaken, it only comes late."""
        if self.held_up or (self.here, self.there) in self.network.stalled:
            loop = asyncio.get_running_loop()
            self._due = max(self._due, loop.time() + 0.02)
            loop.call_at(self._due, self._arrive)
            return
        content = self._under_way.popleft()
        peer = self.peer
        if peer is None or not peer.open or peer.handler is None:
            return
        view = memoryview(content)
        length, kind = HEAD.unpack_from(view)
        try:
            peer.handler.frame(Kind(kind), view[HEAD.size : 4 + length])
        except Exception:  # as asyncio does, whatever it is
            peer.close()
            raise

    @property
    def is_stuck(self) -> bool:
        return False

    @property
    def is_closed(self) -> bool:
        return not self.open

    def close(self) -> None:
        if self.open:
            self.open = False
            loop = asyncio.get_running_loop()
            if self.handler is not None:
                loop.call_soon(self.handler.lost)
            if self.peer is not None:
                loop.call_later(self.network.delay(), self.peer.reset)

    def reset(self) -> None:
        stalled = self.network.stalled
        if self.open and ((self.there, self.here) in stalled or (self.here, self.there) in stalled):
            asyncio.get_running_loop().call_later(0.05, self.reset)
        else:
            self.close()

    def vanish(self) -> None:
        """The process is gone: its own handler hears nothing any more."""
        self.handler = None
        self.close()


class SimNetwork:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._listening: dict[int, Callable[[Channel], Handler]] = {}
        self.ends: list[SimEnd] = []
        self.stalled: set[tuple[int, int]] = set()
        """(from, to): nothing gets through in this direction."""

    def delay(self) -> float:
        return self._chance.uniform(0.0001, 0.003)

    def of(self, broker: int) -> _Door:
        return _Door(self, broker)

    def crash(self, broker: int) -> None:
        self._listening.pop(broker, None)
        for end in [end for end in self.ends if end.here == broker]:
            end.vanish()
        self.ends = [end for end in self.ends if end.open]


class _Door:
    """The network as one broker has it; addresses are broker numbers."""

    def __init__(self, network: SimNetwork, broker: int) -> None:
        self._network = network
        self._broker = broker

    async def dial(self, address: tuple[str, int], handler: Handler) -> Channel:
        network, there = self._network, address[1]
        await asyncio.sleep(network.delay())
        while {(self._broker, there), (there, self._broker)} & network.stalled:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        accept = network._listening.get(there)
        if accept is None:
            raise ConnectionRefusedError
        here, far = SimEnd(network, self._broker, there), SimEnd(network, there, self._broker)
        here.peer, far.peer = far, here
        here.handler, far.handler = handler, accept(far)
        network.ends += [here, far]
        return here

    async def listen(
        self, address: tuple[str, int], accept: Callable[[Channel], Handler]
    ) -> tuple[int, Callable[[], None]]:
        self._network._listening[self._broker] = accept
        return self._broker, lambda: None


# Logs


class _SlowDisk:
    """The thread of a broker's write-behind: one thing after the other, each after a while. What it has not
    come to when the process is killed is never done."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.slowest = chance.choice([0.001, 0.01, 0.1, 2.0])  # the last one is full
        self._due = 0.0
        self._waiting: deque[Callable[[], None]] = deque()
        self.dead = False

    def run(self, loop: VirtualLoop, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done: asyncio.Future[Any] = loop.create_future()
        self._waiting.append(lambda: _do(done, func, *args))
        self._due = max(self._due, loop.time()) + self._chance.uniform(0, self.slowest)
        loop.call_at(self._due, self._work)
        return done

    def _work(self) -> None:
        work = self._waiting.popleft()
        if not self.dead:
            work()


def _do(done: asyncio.Future[Any], func: Callable[..., Any], *args: Any) -> None:
    try:
        result = func(*args)
    except Exception as error:
        done.set_exception(error)
    else:
        if not done.cancelled():
            done.set_result(result)


class SimBroker:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.root = world.directory / str(number)
        self.metadata = SimMetadata(world.keys, world.chance)
        self.replicator: Replicator | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    async def start(self, prepare: Callable[[LogStore], object] = lambda _: None) -> None:
        """`prepare` gets its logs before anything is done with them."""
        world = self.world
        loop = asyncio.get_running_loop()
        (self.root / "disk").mkdir(parents=True, exist_ok=True)
        store = LogStore(
            broker_id=self.number,
            memory_root=self.root / "memory",
            disk_root=self.root / "disk",
            memory_budget=8 << 20,
            clock=lambda: 1_700_000_000_000 + round(1000 * loop.time()),
            draw=lambda: world.chance.getrandbits(62) | 1,
        )
        store.pool._clock = loop.time
        self.disk = _SlowDisk(world.chance)
        store.write_behind._thread = self.disk  # type: ignore[assignment]
        store.write_behind.start()
        prepare(store)
        directory = ClusterDirectory(self.metadata, self.number, {})
        directory.cluster_id = "sim"
        self._tasks = [asyncio.create_task(directory._follow())]
        await directory._loaded.wait()
        self.store, self.directory = store, directory
        self.replicator = Replicator(
            broker_id=self.number,
            directory=directory,
            metadata=self.metadata,
            store=store,
            network=world.network.of(self.number),
            patience=world.patience,
        )
        await self.replicator.listen(("sim", 0))
        info = BrokerInfo(self.number, "sim", 0, "sim", self.number, None, store.incarnation)
        world.keys.put(f"/brokers/{self.number}", _plain(info))
        self.replicator.start()

    def crash(self) -> None:
        """kill -9: tasks end between two instructions, memory and disk stay as they are. What was on its
        way to disk is not there: the records in memory are newer than files and saved state."""
        replicator = self.replicator
        if replicator is None:
            return
        self.world.network.crash(self.number)
        for link in replicator.links.values():
            self._tasks += link._tasks
        self.disk.dead = True
        assert self.store.write_behind._task is not None
        for task in (*self._tasks, *replicator._tasks, self.store.write_behind._task, *self.store._dropping):
            task.cancel()
        self._tasks = []
        replicator._stopping = True
        replicator.directory.listeners.clear()
        for replica in replicator.replicas.values():
            replica.log.term += 1  # nobody is answered by a dead process
            replica.log.deleted = True
            replica.log.wake()
        replicator.replicas.clear()
        for log in self.store.logs.values():
            check_epochs(log)
            for segment in log.segments:
                segment.close_file()
        self.store.state.close()
        self.replicator = None

    def lose_storage(self) -> None:
        shutil.rmtree(self.root / "memory", ignore_errors=True)
        shutil.rmtree(self.root / "disk", ignore_errors=True)

    def lose_memory(self) -> None:
        shutil.rmtree(self.root / "memory", ignore_errors=True)

    @property
    def alive(self) -> bool:
        return self.replicator is not None

    def log(self, key: PartitionKey) -> PartitionLog | None:
        replica = self.replicator.replicas.get(key) if self.replicator is not None else None
        return replica.log if replica is not None else None

    def led(self, key: PartitionKey) -> PartitionLog | None:
        log = self.log(key)
        return log if log is not None and log.leading else None


def _plain(info: BrokerInfo) -> Any:
    return {name: getattr(info, name) for name in BrokerInfo.__slots__}


class World:
    """Brokers 1 to n and one topic with one partition on all of them, unless told otherwise."""

    def __init__(
        self, seed: int, brokers: int = 3, configs: dict[str, str] | None = None, replicas: int | None = None
    ) -> None:
        self.chance = random.Random(seed)
        self.keys = Keys()
        self.network = SimNetwork(self.chance)
        self.patience = Patience()
        self.directory = Path(tempfile.mkdtemp(prefix="penstock-sim-", dir="/dev/shm"))
        self.brokers = {number: SimBroker(self, number) for number in range(1, brokers + 1)}
        self.topic_id = bytes(range(16))
        self.key: PartitionKey = (self.topic_id, 0)
        self.acknowledged: dict[int, bytes] = {}
        """Offset and value of what a producer was told is safe."""
        self.seen: dict[int, bytes] = {}
        """Offset and value of what any reader ever got."""
        self._read_up_to: dict[tuple[PartitionLog, int], int] = {}
        """By log and term."""
        self.outcomes: dict[ErrorCode, int] = {}
        self._number = 0
        placed = list(self.brokers)[: replicas or brokers]
        self.keys.put(
            "/topics/t",
            {
                "id": str(uuid.UUID(bytes=self.topic_id)),
                "configs": {"segment.bytes": "16384", **(configs or {})},
                "partitions": [[-1, -1, placed, []]],
            },
        )

    def close(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    async def start(self) -> None:
        for broker in self.brokers.values():
            await broker.start()

    @property
    def state(self) -> PartitionState | None:
        from penstock.cluster import partitions

        found = self.keys.values.get(partitions.path_of(self.key))
        return partitions.decode(found) if found else None

    def move(self, *replicas: int) -> None:
        """As `penstock cluster reassign` does, with a swap that succeeds."""
        from penstock.cluster import partitions

        state = self.state
        assert state is not None
        wanted = replace(state, replicas=replicas, reason="reassigned")
        self.keys.put(partitions.path_of(self.key), partitions.encode(wanted))

    async def until(self, condition: Callable[[], Any], seconds: float = 30) -> Any:
        deadline = asyncio.get_running_loop().time() + seconds
        while not (found := condition()):
            assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} s: {self.state}"
            await asyncio.sleep(0.01)
        return found

    async def in_sync(self, count: int) -> None:
        await self.until(lambda: self.state is not None and len(self.state.in_sync) == count)

    def leader(self) -> SimBroker | None:
        """Whoever thinks so, in the highest epoch."""
        leading = [(log.leader_epoch, b.number) for b in self.brokers.values() if (log := b.led(self.key))]
        return self.brokers[max(leading)[1]] if leading else None

    async def leading(self) -> SimBroker:
        found: SimBroker = await self.until(self.leader)
        return found

    def settled(self) -> bool:
        """Everybody that should have it is in sync, and knows that all is committed; nobody else has it."""
        state, leader = self.state, self.leader()
        led = leader.led(self.key) if leader is not None else None
        if state is None or led is None or {member.broker for member in state.in_sync} != set(state.replicas):
            return False
        if any(b.log(self.key) is not None for b in self.brokers.values() if b.number not in state.replicas):
            return False
        logs = [self.brokers[member.broker].log(self.key) for member in state.in_sync]
        return all(log is not None and led.log_end == log.log_end == log.high_watermark for log in logs)

    # Clients

    async def produce(self, log: PartitionLog | None = None, timeout: float = 3.0) -> ErrorCode:
        """Append one record where somebody leads; note it if it is acknowledged."""
        if log is None:
            leading = [found for broker in self.brokers.values() if (found := broker.led(self.key))]
            if not leading:
                return ErrorCode.leader_not_available
            log = self.chance.choice(leading)
        if log.short_of_replicas:
            return ErrorCode.not_enough_replicas
        self._number += 1
        value = b"%08d" % self._number + b"." * self.chance.randrange(300)
        encoded = encode_batch([Record(0, 1_700_000_000_000, None, value)])
        result = log.append(batch.check_produced(memoryview(encoded), 1 << 20), memoryview(encoded))
        deadline = asyncio.get_running_loop().time() + timeout
        code = await committed(log, result.next_offset, log.term, deadline)
        self.outcomes[code] = self.outcomes.get(code, 0) + 1
        if code is ErrorCode.none:
            assert self.acknowledged.setdefault(result.base_offset, value) == value, "one offset, two records"
        return code

    def read(self, log: PartitionLog, behind: int = 40) -> None:
        """What a consumer of this leader can have: of a new one the newest again, then what it adds. An
        offset means the same record for ever."""
        start = self._read_up_to.get((log, log.term), log.high_watermark - behind)
        for offset, value in records(log, start).items():
            assert self.seen.setdefault(offset, value) == value, f"offset {offset} changed its meaning"
        self._read_up_to[log, log.term] = log.high_watermark

    def read_all(self) -> None:
        for broker in self.brokers.values():
            log = broker.led(self.key)
            if log is not None:
                self.read(log)

    def check(self) -> None:
        """Every acknowledged and every seen record is in every in-sync replica, where it was."""
        state = self.state
        assert state is not None
        for member in state.in_sync:
            log = self.brokers[member.broker].log(self.key)
            assert log is not None
            there = records(log)
            for what, wanted in (("acknowledged", self.acknowledged), ("seen", self.seen)):
                lost = {o: v for o, v in wanted.items() if o >= log.log_start and there.get(o) != v}
                assert not lost, f"broker {member.broker} lost {len(lost)} {what}: {list(lost.items())[:3]}"
            check_epochs(log)


def check_epochs(log: PartitionLog) -> None:
    """The table that handshakes go by says the same as the records, committed or not."""
    starts = [entry.start_offset for entry in log.epochs]
    assert starts == sorted(starts), f"{log!r}: epochs go back: {log.epochs}"
    for segment in log.segments:
        content = bytes(segment.bytes_between(0, segment.size)) if segment.is_hot else segment.read_file()
        for _, header in batch.walk(content, 0, segment.size):
            entry = log.epochs[bisect_right(starts, header.base_offset) - 1]
            assert entry.epoch == header.leader_epoch, (
                f"{log!r}: epoch {header.leader_epoch} at {header.base_offset}, but {log.epochs}"
            )


def records(log: PartitionLog, start: int = 0) -> dict[int, bytes]:
    """The committed records by offset."""
    found: dict[int, bytes] = {}
    offset = max(log.log_start, start)
    while True:
        part = log.read(offset, 1 << 20)
        if part is None:
            return found
        segment = part.segment
        cold = part.view is None
        chunk = segment.read_cold(part.offset, 1 << 20, segment.committed) if cold else bytes(part.view)
        for position, header in batch.walk(chunk, 0, len(chunk)):
            found.update(_values(chunk[position : position + header.size]))
            offset = header.next_offset


@functools.lru_cache(maxsize=4096)
def _values(encoded: bytes) -> dict[int, bytes]:
    """By offset; remembered, since every reader of every replica gets the same batches."""
    return {record.offset: record.value for record in decode_records(encoded) if record.value is not None}
