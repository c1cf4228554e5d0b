"""The group coordinator: real kio messages in and out, an event loop, and time that the test drives."""

from __future__ import annotations

import asyncio
import heapq
import importlib
import inspect
import io
import itertools
import time
import types
import typing
from collections.abc import AsyncIterator, Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from penstock.broker.groups import ClientInfo, GroupCoordinator, GroupSettings, GroupView, partition_for
from penstock.broker.groups.model import Timer
from penstock.broker.groups.takeover import take_over
from penstock.log.partition import PartitionLog
from penstock.wire.errors import KafkaError

OK = ErrorCode.none
PARTITIONS = 4
SECOND = 1000
DAY = 24 * 3600 * SECOND
ORDERS_ID = UUID(int=77)
CLIENT = ClientInfo("app", "/10.0.0.1")

Fields = dict[str, Any]


# -- doubles: time and the log -----


@dataclass(order=True)
class _Scheduled:
    at: int
    order: int
    callback: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class DrivenTimers:
    def __init__(self) -> None:
        self.now = 1_700_000_000_000
        self._heap: list[_Scheduled] = []
        self._order = itertools.count()

    def now_ms(self) -> int:
        return self.now

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        scheduled = _Scheduled(self.now + delay_ms, next(self._order), callback)
        heapq.heappush(self._heap, scheduled)
        return scheduled

    async def advance(self, delay_ms: int) -> None:
        end = self.now + delay_ms
        while self._heap and self._heap[0].at <= end:
            scheduled = heapq.heappop(self._heap)
            self.now = max(self.now, scheduled.at)
            if not scheduled.cancelled:
                scheduled.callback()
                await settle()
        self.now = end
        await settle()

    @property
    def armed(self) -> int:
        return sum(not scheduled.cancelled for scheduled in self._heap)


async def settle() -> None:
    """Let everything run that can; nothing here waits for real time or a socket."""
    for _ in range(25):
        await asyncio.sleep(0)


class MemoryLog:
    """Has the bytes at once; commits when the gate is open."""

    def __init__(self) -> None:
        self.batches: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
        self.gate = asyncio.Event()
        self.gate.set()
        self.reading = asyncio.Event()
        self.reading.set()
        self.refuse: Exception | None = None

    def partition_for(self, group: str) -> int:
        return partition_for(group, PARTITIONS)

    async def append(self, partition: int, batch: bytes) -> None:
        if self.refuse is not None:
            raise self.refuse
        self.batches[partition].append(batch)
        await self.gate.wait()

    async def read(self, partition: int) -> AsyncIterator[bytes]:
        await self.reading.wait()
        for batch in list(self.batches[partition]):
            yield batch


class SomeTopics:
    def __init__(self) -> None:
        self.names = {"orders", "clicks"}

    def topic_name(self, topic_id: UUID) -> str | None:
        return "orders" if topic_id == ORDERS_ID and "orders" in self.names else None

    def topic_id(self, name: str) -> UUID | None:
        return ORDERS_ID if name == "orders" and name in self.names else None

    def has_partition(self, name: str, partition: int) -> bool:
        return name in self.names and 0 <= partition < 8


# -- kio messages from plain dicts -----


def entity(kind: Any, values: Fields) -> Any:
    """The kio entity, keys it doesn't have dropped, times given in ms: what the wire layer does, too."""
    hints = typing.get_type_hints(kind)
    made = {}
    for field in fields(kind):
        if field.name in values:
            made[field.name] = _value(hints[field.name], values[field.name])
        elif field.default is MISSING:
            assert field.name == "throttle_time", f"{kind.__name__} needs {field.name}"
            made[field.name] = timedelta(0)
    return kind(**made)


def _value(hint: Any, value: Any) -> Any:
    if isinstance(value, int) and "Timedelta" in str(hint):
        return timedelta(milliseconds=value)
    if value is None or not isinstance(value, list | tuple):
        return value
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    (item, *_) = typing.get_args(hint)
    return tuple(entity(item, part) if is_dataclass(item) else part for part in value)


def kio_class(api: str, version: int, side: str) -> Any:
    name = "".join(part.title() for part in api.split("_")) + side.title()
    return getattr(importlib.import_module(f"kio.schema.{api}.v{version}.{side}"), name)


class World:
    """A coordinator of all partitions, its log, its topics and its time."""

    def __init__(self, log: MemoryLog | None = None, **settings: int) -> None:
        self.log = log or MemoryLog()
        self.timers = DrivenTimers()
        self.topics = SomeTopics()
        ids = itertools.count(1)
        chosen = GroupSettings(**{"initial_rebalance_delay_ms": 0, **settings})
        self.coordinator = GroupCoordinator(
            self.log, self.topics, chosen, self.timers, new_id=lambda: str(next(ids))
        )

    async def load(self) -> World:
        for partition in range(PARTITIONS):
            await self.coordinator.load(partition)
        return self

    async def call(self, api: str, version: int, client: ClientInfo = CLIENT, **values: Any) -> Fields:
        request = entity(kio_class(api, version, "request"), values)
        answer = getattr(self.coordinator, api)(request, version, client)
        if inspect.isawaitable(answer):
            answer = await answer
        response = entity(kio_class(api, version, "response"), answer)
        entity_writer(type(response))(io.BytesIO(), response)
        fields_of_answer: Fields = answer
        return fields_of_answer

    async def start(self, api: str, version: int, **values: Any) -> asyncio.Task[Fields]:
        """A call that waits, begun."""
        task = asyncio.create_task(self.call(api, version, **values))
        await settle()
        return task

    def group(self, group_id: str = "g") -> GroupView:
        return next(view for view in self.coordinator.groups() if view.group_id == group_id)

    async def commit(
        self, offset: int, partition: int = 0, topic: str = "orders", **values: Any
    ) -> ErrorCode:
        asked = {"partition_index": partition, "committed_offset": offset, "committed_metadata": None}
        answer = await self.call(
            "offset_commit",
            9,
            **{
                "group_id": "g",
                "member_id": "",
                "topics": [{"name": topic, "partitions": [asked]}],
                **values,
            },
        )
        code: ErrorCode = answer["topics"][0]["partitions"][0]["error_code"]
        return code

    async def committed(self, partition: int = 0, topic: str = "orders", group: str = "g") -> int:
        topics = [{"name": topic, "partition_indexes": [partition]}]
        answer = await self.call("offset_fetch", 7, group_id=group, topics=topics)
        assert answer["error_code"] is OK
        offset: int = answer["topics"][0]["partitions"][0]["committed_offset"]
        return offset


@pytest.fixture
async def world() -> World:
    return await World().load()


class Consumer:
    """A client that plays its part of the protocol."""

    def __init__(self, world: World, instance: str | None = None, group: str = "g", version: int = 9) -> None:
        self.world = world
        self.instance = instance
        self.group = group
        self.version = version
        self.member_id = ""
        self.generation = -1
        self.protocols = [("range", subscription("orders"))]
        self.session = 10 * SECOND
        self.rebalance = 60 * SECOND
        self.last_join: Fields = {}

    async def join_once(self) -> Fields:
        answer = await self.world.call(
            "join_group",
            self.version,
            group_id=self.group,
            session_timeout=self.session,
            rebalance_timeout=self.rebalance,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[{"name": name, "metadata": metadata} for name, metadata in self.protocols],
        )
        if answer["error_code"] in (OK, ErrorCode.member_id_required):
            self.member_id = answer["member_id"]
            self.generation = answer["generation_id"]
        self.last_join = answer
        return answer

    async def join(self) -> Fields:
        answer = await self.join_once()
        if answer["error_code"] is ErrorCode.member_id_required:
            answer = await self.join_once()
        return answer

    async def sync(self, assignments: dict[str, bytes] | None = None) -> Fields:
        parts = [{"member_id": key, "assignment": part} for key, part in (assignments or {}).items()]
        return await self.world.call(
            "sync_group",
            5,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name=self.last_join.get("protocol_name", "range"),
            assignments=parts,
        )

    async def heartbeat(self) -> ErrorCode:
        answer = await self.world.call(
            "heartbeat",
            4,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        code: ErrorCode = answer["error_code"]
        return code

    async def leave(self) -> ErrorCode:
        leaver = {"member_id": self.member_id, "group_instance_id": self.instance}
        answer = await self.world.call("leave_group", 5, group_id=self.group, members=[leaver])
        code: ErrorCode = answer["members"][0]["error_code"]
        return code

    async def commit(self, offset: int) -> ErrorCode:
        return await self.world.commit(
            offset,
            group_id=self.group,
            member_id=self.member_id,
            group_instance_id=self.instance,
            generation_id_or_member_epoch=self.generation,
        )

    @property
    def leads(self) -> bool:
        return bool(self.last_join["leader"] == self.member_id)


def subscription(*topics: str) -> bytes:
    names = b"".join(len(topic).to_bytes(2, "big") + topic.encode() for topic in topics)
    return b"\0\1" + len(topics).to_bytes(4, "big") + names + b"\xff\xff\xff\xff" + b"\0\0\0\0"


async def begin(*consumers: Consumer) -> list[asyncio.Task[Fields]]:
    """Joins that wait for each other, all on their way."""
    joins = [asyncio.create_task(consumer.join()) for consumer in consumers]
    await settle()
    return joins


async def assign(*consumers: Consumer) -> None:
    """All sync; the leader gives each member its own id as assignment."""
    parts = {consumer.member_id: f"part of {consumer.member_id}".encode() for consumer in consumers}
    answers = await asyncio.gather(
        *(consumer.sync(parts if consumer.leads else None) for consumer in consumers)
    )
    for consumer, answer in zip(consumers, answers, strict=True):
        assert answer["error_code"] is OK
        assert answer["assignment"] == f"part of {consumer.member_id}".encode()


async def form(world: World, *consumers: Consumer) -> None:
    """Bring a new group to Stable."""
    joins = await begin(*consumers)
    await world.timers.advance(0)
    for join in joins:
        assert (await join)["error_code"] is OK
    await assign(*consumers)
    assert world.group(consumers[0].group).state == "Stable"


# -- joining -----


async def test_members_join_sync_and_are_stable(world: World) -> None:
    one, two, three = (Consumer(world) for _ in range(3))
    await form(world, one, two, three)
    assert [consumer.leads for consumer in (one, two, three)].count(True) == 1
    assert {consumer.generation for consumer in (one, two, three)} == {1}
    leader = next(consumer for consumer in (one, two, three) if consumer.leads)
    assert {m["member_id"] for m in leader.last_join["members"]} == {
        one.member_id,
        two.member_id,
        three.member_id,
    }
    assert all(m["metadata"] == subscription("orders") for m in leader.last_join["members"])
    for follower in {one, two, three} - {leader}:
        assert follower.last_join["members"] == []
    for consumer in (one, two, three):
        assert await consumer.heartbeat() is OK


async def test_a_new_member_must_come_back_with_the_id_it_was_given(world: World) -> None:
    consumer = Consumer(world, version=4)
    answer = await consumer.join_once()
    assert answer["error_code"] is ErrorCode.member_id_required
    assert answer["member_id"].startswith("app-")
    assert world.group().members == ()
    await form(world, consumer)
    assert consumer.member_id == answer["member_id"]


async def test_old_clients_join_in_one_step(world: World) -> None:
    consumer = Consumer(world, version=3)
    (join,) = await begin(consumer)
    await world.timers.advance(0)
    assert (await join)["error_code"] is OK


async def test_the_first_join_waits_for_others_and_longer_while_they_come() -> None:
    world = await World(initial_rebalance_delay_ms=300).load()
    one, two = Consumer(world, version=3), Consumer(world, version=3)
    (first,) = await begin(one)
    await world.timers.advance(200)
    (second,) = await begin(two)
    await world.timers.advance(200)
    assert not first.done()
    await world.timers.advance(200)
    assert (await first)["generation_id"] == (await second)["generation_id"] == 1


async def test_the_first_join_does_not_wait_past_the_rebalance_timeout() -> None:
    world = await World(initial_rebalance_delay_ms=300).load()
    one = Consumer(world, version=3)
    one.rebalance = 500
    (first,) = await begin(one)
    for _ in range(4):
        await world.timers.advance(124)
        late = Consumer(world, version=3)
        late.rebalance = 500
        await begin(late)
        assert not first.done()
    await world.timers.advance(5)
    assert first.done()


async def test_the_event_loops_own_time_drives_a_group_too(world: World) -> None:
    settings = GroupSettings(initial_rebalance_delay_ms=1)
    world.coordinator = GroupCoordinator(world.log, world.topics, settings)
    await world.load()
    one = Consumer(world)
    async with asyncio.timeout(10):
        assert (await one.join())["generation_id"] == 1
    await assign(one)
    await one.commit(3)
    (committed,) = world.group().offsets.values()
    assert abs(committed.commit_timestamp - time.time() * 1000) < 10 * SECOND
    for partition in range(PARTITIONS):
        world.coordinator.unload(partition)


async def test_the_protocol_is_the_one_most_members_prefer_of_those_all_know(world: World) -> None:
    choices = [("a", "b", "c"), ("c", "b"), ("b", "c", "x")]
    consumers = [Consumer(world) for _ in choices]
    for consumer, names in zip(consumers, choices, strict=True):
        consumer.protocols = [(name, name.encode()) for name in names]
    await form(world, *consumers)
    assert world.group().protocol == "b"
    assert {c.last_join["protocol_name"] for c in consumers} == {"b"}


async def test_a_member_that_shares_no_protocol_is_refused(world: World) -> None:
    one, odd = Consumer(world), Consumer(world)
    await form(world, one)
    odd.protocols = [("sticky", b"")]
    assert (await odd.join())["error_code"] is ErrorCode.inconsistent_group_protocol
    odd.protocols = []
    assert (await odd.join())["error_code"] is ErrorCode.inconsistent_group_protocol
    assert await one.heartbeat() is OK


async def test_a_member_of_another_kind_is_refused(world: World) -> None:
    await form(world, Consumer(world))
    answer = await world.call(
        "join_group",
        9,
        group_id="g",
        session_timeout=10 * SECOND,
        member_id="",
        protocol_type="connect",
        protocols=[{"name": "range", "metadata": b""}],
    )
    assert answer["error_code"] is ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize("session", [0, 5_999, 1_800_001])
async def test_session_timeouts_out_of_bounds_are_refused(world: World, session: int) -> None:
    consumer = Consumer(world)
    consumer.session = session
    assert (await consumer.join())["error_code"] is ErrorCode.invalid_session_timeout


async def test_a_group_without_a_name_is_refused(world: World) -> None:
    consumer = Consumer(world, group="")
    assert (await consumer.join())["error_code"] is ErrorCode.invalid_group_id
    assert (await consumer.sync())["error_code"] is ErrorCode.invalid_group_id
    assert await consumer.heartbeat() is ErrorCode.invalid_group_id
    assert (await world.call("leave_group", 5, group_id="", members=[]))[
        "error_code"
    ] is ErrorCode.invalid_group_id


async def test_a_name_too_long_for_the_log_is_refused(world: World) -> None:
    assert (await Consumer(world, group="x" * 40_000).join())["error_code"] is ErrorCode.invalid_group_id
    assert await world.commit(1, group_id="x" * 40_000) is ErrorCode.invalid_group_id
    assert (await Consumer(world, instance="x" * 40_000).join())["error_code"] is ErrorCode.invalid_request


async def test_an_id_nobody_gave_out_is_unknown(world: World) -> None:
    ghost = Consumer(world)
    ghost.member_id, ghost.generation = "ghost", 1
    assert (await ghost.join())["error_code"] is ErrorCode.unknown_member_id
    await form(world, Consumer(world))
    assert (await ghost.join())["error_code"] is ErrorCode.unknown_member_id
    assert (await ghost.sync())["error_code"] is ErrorCode.unknown_member_id
    assert await ghost.heartbeat() is ErrorCode.unknown_member_id
    assert await ghost.leave() is ErrorCode.unknown_member_id
    assert await ghost.commit(1) is ErrorCode.unknown_member_id


async def test_a_full_group_takes_no_more() -> None:
    world = await World(max_size=2).load()
    one, two, late = Consumer(world), Consumer(world), Consumer(world)
    await form(world, one, two)
    assert (await late.join())["error_code"] is ErrorCode.group_max_size_reached
    assert await one.heartbeat() is OK
    await one.leave()
    joins = await begin(late, two)
    assert [(await join)["error_code"] for join in joins] == [OK, OK]


# -- rebalancing -----


async def test_a_newcomer_makes_everyone_rejoin(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    await form(world, one)
    (waiting,) = await begin(two)
    assert await one.heartbeat() is ErrorCode.rebalance_in_progress
    assert (await one.sync())["error_code"] is ErrorCode.rebalance_in_progress
    assert not waiting.done()
    assert (await one.join())["generation_id"] == 2
    assert (await waiting)["generation_id"] == 2
    assert one.leads
    await assign(one, two)


async def test_who_does_not_rejoin_in_time_is_out(world: World) -> None:
    slow, two = Consumer(world), Consumer(world)
    await form(world, slow)
    (waiting,) = await begin(two)
    for _ in range(11):
        await world.timers.advance(5 * SECOND)
        await slow.heartbeat()
    assert not waiting.done()
    await world.timers.advance(5 * SECOND)
    assert (await waiting)["generation_id"] == 2
    assert two.leads
    assert await slow.heartbeat() is ErrorCode.unknown_member_id
    await assign(two)


async def test_a_member_that_stops_heartbeating_is_out(world: World) -> None:
    one, silent = Consumer(world), Consumer(world)
    await form(world, one, silent)
    await world.timers.advance(6 * SECOND)
    assert await one.heartbeat() is OK
    await world.timers.advance(6 * SECOND)
    assert await one.heartbeat() is ErrorCode.rebalance_in_progress
    assert await silent.heartbeat() is ErrorCode.unknown_member_id
    assert (await one.join())["generation_id"] == 2
    assert one.leads
    await assign(one)


async def test_a_member_that_waits_is_not_taken_for_dead(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    await form(world, one, two)
    (rejoined,) = await begin(one if one.leads else two)
    waiter = one if one.leads else two
    other = two if one.leads else one
    for _ in range(5):
        await world.timers.advance(8 * SECOND)
        assert await other.heartbeat() is ErrorCode.rebalance_in_progress
    (again,) = await begin(other)
    assert (await again)["error_code"] is (await rejoined)["error_code"] is OK
    await assign(waiter, other)


async def test_a_new_member_that_waits_too_long_is_out() -> None:
    world = await World(new_member_join_timeout_ms=20 * SECOND).load()
    one, two = Consumer(world), Consumer(world)
    await form(world, one)
    (waiting,) = await begin(two)
    for _ in range(4):
        await world.timers.advance(5 * SECOND)
        await one.heartbeat()
    assert (await waiting)["error_code"] is ErrorCode.unknown_member_id


async def test_an_id_that_is_never_used_holds_up_the_group_for_a_session_only(world: World) -> None:
    one, shy = Consumer(world), Consumer(world)
    await form(world, one)
    await shy.join_once()
    assert await one.heartbeat() is OK
    (rejoined,) = await begin(one)
    await world.timers.advance(9 * SECOND)
    assert not rejoined.done()
    await world.timers.advance(1 * SECOND)
    assert (await rejoined)["generation_id"] == 2
    assert (await shy.join())["error_code"] is ErrorCode.unknown_member_id


async def test_who_leaves_is_missed_at_once(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    await form(world, one, two)
    assert await two.leave() is OK
    assert await two.leave() is ErrorCode.unknown_member_id
    assert await one.heartbeat() is ErrorCode.rebalance_in_progress
    assert (await one.join())["error_code"] is OK
    await assign(one)
    assert await one.leave() is OK
    assert world.group().state == "Empty"
    assert world.timers.armed == 0


async def test_old_clients_leave_with_an_old_request(world: World) -> None:
    one = Consumer(world)
    await form(world, one)
    answer = await world.call("leave_group", 1, group_id="g", member_id="ghost")
    assert answer["error_code"] is ErrorCode.unknown_member_id
    answer = await world.call("leave_group", 1, group_id="g", member_id=one.member_id)
    assert answer["error_code"] is OK
    assert world.group().state == "Empty"


async def test_a_member_that_never_syncs_is_out(world: World) -> None:
    one, mute = Consumer(world), Consumer(world)
    one.rebalance = mute.rebalance = 20 * SECOND
    joins = await begin(one, mute)
    await world.timers.advance(0)
    await asyncio.gather(*joins)
    leader, follower = (one, mute) if one.leads else (mute, one)
    assert (await leader.sync({leader.member_id: b"all"}))["error_code"] is OK
    for _ in range(3):
        await world.timers.advance(5 * SECOND)
        assert await leader.heartbeat() is await follower.heartbeat() is OK
    await world.timers.advance(5 * SECOND)
    assert await leader.heartbeat() is ErrorCode.rebalance_in_progress
    assert await follower.heartbeat() is ErrorCode.unknown_member_id


async def test_a_leader_that_dies_before_it_assigns_is_replaced(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    joins = await begin(one, two)
    await world.timers.advance(0)
    await asyncio.gather(*joins)
    leader, follower = (one, two) if one.leads else (two, one)
    waiting = asyncio.create_task(follower.sync())
    await world.timers.advance(9 * SECOND)
    assert not waiting.done()
    await world.timers.advance(2 * SECOND)
    assert (await waiting)["error_code"] is ErrorCode.rebalance_in_progress
    assert (await follower.join())["generation_id"] == 2
    assert follower.leads
    assert await leader.heartbeat() is ErrorCode.unknown_member_id


async def test_an_old_generation_is_refused(world: World) -> None:
    one = Consumer(world)
    await form(world, one)
    one.generation = 0
    assert await one.heartbeat() is ErrorCode.illegal_generation
    assert (await one.sync())["error_code"] is ErrorCode.illegal_generation
    assert await one.commit(1) is ErrorCode.illegal_generation


async def test_a_sync_for_another_protocol_is_refused(world: World) -> None:
    one = Consumer(world)
    await form(world, one)
    one.last_join["protocol_name"] = "sticky"
    assert (await one.sync())["error_code"] is ErrorCode.inconsistent_group_protocol


async def test_a_lost_join_answer_is_given_again(world: World) -> None:
    one = Consumer(world)
    (join,) = await begin(one)
    await world.timers.advance(0)
    first = await join
    assert await one.join() == first
    await assign(one)


async def test_a_lost_sync_answer_is_given_again(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    await form(world, one, two)
    for consumer in (one, two):
        assert (await consumer.sync())["assignment"] == f"part of {consumer.member_id}".encode()


async def test_a_followers_rejoin_changes_nothing_a_leaders_does(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    await form(world, one, two)
    leader, follower = (one, two) if one.leads else (two, one)
    assert (await follower.join())["generation_id"] == 1
    assert await leader.heartbeat() is OK
    (rejoined,) = await begin(leader)
    assert await follower.heartbeat() is ErrorCode.rebalance_in_progress
    assert (await follower.join())["generation_id"] == (await rejoined)["generation_id"] == 2


async def test_a_follower_with_a_new_subscription_is_a_rebalance(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    await form(world, one, two)
    leader, follower = (one, two) if one.leads else (two, one)
    follower.protocols = [("range", subscription("clicks"))]
    (rejoined,) = await begin(follower)
    assert not rejoined.done()
    await leader.join()
    assert (await rejoined)["generation_id"] == 2
    assert subscription("clicks") in [member["metadata"] for member in leader.last_join["members"]]


async def test_a_client_that_hangs_up_while_it_waits_hurts_nobody(world: World) -> None:
    one, gone = Consumer(world), Consumer(world)
    await form(world, one)
    (waiting,) = await begin(gone)
    waiting.cancel()
    await settle()
    assert (await one.join())["generation_id"] == 2
    await one.sync({one.member_id: b"all"})
    assert await one.heartbeat() is OK
    await world.timers.advance(6 * SECOND)
    assert await one.heartbeat() is OK
    await world.timers.advance(6 * SECOND)
    assert await one.heartbeat() is ErrorCode.rebalance_in_progress


async def test_a_repeated_join_takes_the_place_of_the_first_which_is_answered(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    await form(world, one, two)
    leader, other = (one, two) if one.leads else (two, one)
    (first,) = await begin(leader)
    (second,) = await begin(leader)
    assert (await first)["error_code"] is ErrorCode.rebalance_in_progress
    await other.join()
    assert (await second)["error_code"] is OK


async def test_members_hear_when_their_assignment_could_not_be_stored(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    joins = await begin(one, two)
    await world.timers.advance(0)
    await asyncio.gather(*joins)
    world.log.refuse = KafkaError(ErrorCode.not_enough_replicas)
    answers = await asyncio.gather(one.sync({}), two.sync({}))
    assert {answer["error_code"] for answer in answers} == {ErrorCode.coordinator_not_available}
    world.log.refuse = None
    joins = await begin(one, two)
    assert {(await join)["generation_id"] for join in joins} == {2}
    await assign(one, two)


async def test_an_assignment_holds_only_when_the_log_has_it(world: World) -> None:
    one = Consumer(world)
    (join,) = await begin(one)
    await world.timers.advance(0)
    await join
    world.log.gate.clear()
    syncing = asyncio.create_task(one.sync({one.member_id: b"all"}))
    await settle()
    assert not syncing.done()
    assert world.group().state == "CompletingRebalance"
    world.log.gate.set()
    assert (await syncing)["assignment"] == b"all"
    assert world.group().state == "Stable"


async def test_a_leader_that_repeats_itself_is_taken_at_its_first_word(world: World) -> None:
    one = Consumer(world)
    (join,) = await begin(one)
    await world.timers.advance(0)
    await join
    world.log.gate.clear()
    first = asyncio.create_task(one.sync({one.member_id: b"first"}))
    await settle()
    second = asyncio.create_task(one.sync({one.member_id: b"second"}))
    await settle()
    world.log.gate.set()
    assert (await first)["error_code"] is ErrorCode.rebalance_in_progress
    assert (await second)["assignment"] == b"first"
    assert (await World(world.log).load()).group() == world.group()


async def test_the_session_of_who_waited_for_its_assignment_starts_with_it(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    joins = await begin(one, two)
    await world.timers.advance(0)
    await asyncio.gather(*joins)
    leader, follower = (one, two) if one.leads else (two, one)
    waiting = asyncio.create_task(follower.sync())
    for _ in range(3):
        await world.timers.advance(6 * SECOND)
        assert await leader.heartbeat() is OK
    assert (await leader.sync())["error_code"] is (await waiting)["error_code"] is OK
    await world.timers.advance(9 * SECOND)
    assert await leader.heartbeat() is OK
    await world.timers.advance(2 * SECOND)
    assert await leader.heartbeat() is ErrorCode.rebalance_in_progress


async def test_an_assignment_stored_after_the_next_rebalance_began_is_not_used(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    (join,) = await begin(one)
    await world.timers.advance(0)
    await join
    world.log.gate.clear()
    syncing = asyncio.create_task(one.sync({one.member_id: b"all"}))
    await settle()
    (waiting,) = await begin(two)
    assert (await syncing)["error_code"] is ErrorCode.rebalance_in_progress
    world.log.gate.set()
    await settle()
    assert world.group().state == "PreparingRebalance"
    await one.join()
    await waiting
    await assign(one, two)


# -- static members -----


async def test_a_static_member_returns_without_a_rebalance(world: World) -> None:
    one, two = Consumer(world, "i1"), Consumer(world, "i2")
    await form(world, one, two)
    leader, follower = (one, two) if one.leads else (two, one)
    back = Consumer(world, follower.instance)
    answer = await back.join()
    assert (answer["error_code"], answer["generation_id"]) == (OK, 1)
    assert back.member_id != follower.member_id
    assert answer["leader"] == leader.member_id
    assert (await back.sync())["assignment"] == f"part of {follower.member_id}".encode()
    assert await leader.heartbeat() is await back.heartbeat() is OK


async def test_the_old_process_of_a_static_member_is_fenced(world: World) -> None:
    old = Consumer(world, "i1")
    await form(world, old)
    await Consumer(world, "i1").join()
    assert await old.heartbeat() is ErrorCode.fenced_instance_id
    assert await old.commit(1) is ErrorCode.fenced_instance_id
    assert (await old.sync())["error_code"] is ErrorCode.fenced_instance_id
    assert (await old.join())["error_code"] is ErrorCode.fenced_instance_id
    assert await old.leave() is ErrorCode.fenced_instance_id


async def test_a_static_leader_that_returns_is_told_to_skip_the_assignment(world: World) -> None:
    one = Consumer(world, "i1")
    await form(world, one)
    back = Consumer(world, "i1")
    answer = await back.join()
    assert answer["skip_assignment"]
    assert answer["leader"] == back.member_id
    assert [member["member_id"] for member in answer["members"]] == [back.member_id]


async def test_a_static_leader_with_an_old_client_does_not_lead_when_it_returns(world: World) -> None:
    one = Consumer(world, "i1", version=8)
    await form(world, one)
    back = Consumer(world, "i1", version=8)
    answer = await back.join()
    assert not answer["skip_assignment"]
    assert answer["leader"] == one.member_id
    assert answer["members"] == []
    assert (await back.sync())["assignment"] == f"part of {one.member_id}".encode()


async def test_a_waiting_static_member_is_fenced_by_its_next_start(world: World) -> None:
    one = Consumer(world, "i1")
    (waiting,) = await begin(one)
    back = Consumer(world, "i1")
    (second,) = await begin(back)
    assert (await waiting)["error_code"] is ErrorCode.fenced_instance_id
    await world.timers.advance(0)
    assert (await second)["error_code"] is OK
    await assign(back)


async def test_a_static_member_with_another_protocol_is_a_rebalance(world: World) -> None:
    one, two = Consumer(world, "i1"), Consumer(world, "i2")
    one.protocols = two.protocols = [("range", b""), ("sticky", b"")]
    await form(world, one, two)
    back = Consumer(world, "i2")
    back.protocols = [("sticky", b"")]
    (waiting,) = await begin(back)
    assert not waiting.done()
    assert await one.heartbeat() is ErrorCode.rebalance_in_progress
    await one.join()
    assert (await waiting)["protocol_name"] == "sticky"


async def test_a_static_members_place_is_kept_through_a_rebalance(world: World) -> None:
    away, two = Consumer(world, "i1"), Consumer(world, "i2")
    away.session = 100 * SECOND
    await form(world, away, two)
    two.protocols = [("range", subscription("clicks"))]
    (waiting,) = await begin(two)
    await world.timers.advance(60 * SECOND)
    assert (await waiting)["generation_id"] == 2
    assert len(two.last_join["members"]) == 2


async def test_static_members_that_all_missed_a_rebalance_may_still_come_to_it(world: World) -> None:
    one, two, guest = Consumer(world, "i1"), Consumer(world, "i2"), Consumer(world)
    one.session = two.session = 1000 * SECOND
    await form(world, one, two, guest)
    await guest.leave()
    await world.timers.advance(61 * SECOND)
    assert world.group().state == "PreparingRebalance"
    (waiting,) = await begin(one)
    await world.timers.advance(60 * SECOND)
    assert (await waiting)["generation_id"] == 2
    assert one.leads


async def test_of_three_starts_of_a_static_member_the_last_one_counts(world: World) -> None:
    await form(world, Consumer(world, "i1"))
    world.log.gate.clear()
    second, third = Consumer(world, "i1"), Consumer(world, "i1")
    joins = await begin(second, third)
    world.log.gate.set()
    codes = [(await join)["error_code"] for join in joins]
    assert codes == [ErrorCode.fenced_instance_id, OK]
    assert await third.heartbeat() is OK


async def test_a_static_member_returning_as_a_rebalance_begins_takes_part_in_it(world: World) -> None:
    one, two = Consumer(world, "i1"), Consumer(world, "i2")
    await form(world, one, two)
    world.log.gate.clear()
    (returning,) = await begin(Consumer(world, "i2"))
    (newcomer,) = await begin(Consumer(world))
    world.log.gate.set()
    assert (await returning)["error_code"] is ErrorCode.rebalance_in_progress
    joins = await begin(one, Consumer(world, "i2"))
    assert {(await join)["generation_id"] for join in (*joins, newcomer)} == {2}


async def test_a_static_member_leaves_when_its_session_ends(world: World) -> None:
    one = Consumer(world, "i1")
    await form(world, one)
    await world.timers.advance(11 * SECOND)
    assert world.group().state == "Empty"
    await form(world, Consumer(world, "i1"))


async def test_an_operator_removes_a_static_member_by_its_instance(world: World) -> None:
    one = Consumer(world, "i1")
    await form(world, one)
    leavers = [{"member_id": "", "group_instance_id": name} for name in ("i1", "i2")]
    answer = await world.call("leave_group", 5, group_id="g", members=leavers)
    assert [m["error_code"] for m in answer["members"]] == [OK, ErrorCode.unknown_member_id]
    assert world.group().state == "Empty"


async def test_a_return_that_could_not_be_stored_is_undone(world: World) -> None:
    one = Consumer(world, "i1")
    await form(world, one)
    world.log.refuse = KafkaError(ErrorCode.not_leader_or_follower)
    assert (await Consumer(world, "i1").join())["error_code"] is ErrorCode.not_coordinator
    assert await one.heartbeat() is OK


# -- offsets -----


async def test_a_commit_is_answered_and_visible_when_the_log_has_it(world: World) -> None:
    world.log.gate.clear()
    commit = asyncio.create_task(world.commit(42))
    await settle()
    assert not commit.done()
    assert await world.committed() == -1
    world.log.gate.set()
    assert await commit is OK
    assert await world.committed() == 42


async def test_a_commit_counts_even_if_the_client_hung_up(world: World) -> None:
    world.log.gate.clear()
    commit = asyncio.create_task(world.commit(42))
    await settle()
    commit.cancel()
    world.log.gate.set()
    await settle()
    assert await world.committed() == 42


async def test_commits_take_effect_in_the_order_of_the_log(world: World) -> None:
    log = world.log
    gates = [asyncio.Event(), asyncio.Event()]
    batches = []

    async def append(partition: int, batch: bytes) -> None:
        batches.append(batch)
        await gates[len(batches) - 1].wait()

    log.append = append  # type: ignore[method-assign]
    first = asyncio.create_task(world.commit(1))
    second = asyncio.create_task(world.commit(2))
    await settle()
    gates[1].set()
    await settle()
    gates[0].set()
    assert await first is await second is OK
    assert await world.committed() == 2


async def test_anyone_may_commit_in_a_group_without_members(world: World) -> None:
    assert await world.commit(5) is OK
    assert await world.commit(6) is OK
    view = world.group()
    assert (view.state, view.protocol_type) == ("Empty", "")
    assert view.offsets["orders", 0].offset == 6
    assert view.offsets["orders", 0].commit_timestamp == world.timers.now


async def test_only_members_commit_in_a_group_that_has_some(world: World) -> None:
    one = Consumer(world)
    await form(world, one)
    assert await world.commit(5) is ErrorCode.unknown_member_id
    assert await one.commit(5) is OK


async def test_a_generation_of_a_group_that_is_gone_is_refused(world: World) -> None:
    assert await world.commit(5, generation_id_or_member_epoch=3) is ErrorCode.illegal_generation
    assert list(world.coordinator.groups()) == []


async def test_members_commit_while_the_group_prepares_but_not_before_they_know_their_part(
    world: World,
) -> None:
    one, two = Consumer(world), Consumer(world)
    await form(world, one)
    (waiting,) = await begin(two)
    assert await one.commit(5) is OK
    await one.join()
    await waiting
    assert await one.commit(6) is ErrorCode.rebalance_in_progress
    await assign(one, two)
    assert await one.commit(7) is OK


async def test_a_commit_shows_that_the_member_lives(world: World) -> None:
    one = Consumer(world)
    await form(world, one)
    for offset in range(5):
        await world.timers.advance(6 * SECOND)
        assert await one.commit(offset) is OK


async def test_one_bad_partition_spoils_only_itself(world: World) -> None:
    good = {"partition_index": 0, "committed_offset": 9, "committed_metadata": "fine"}
    topics = [
        {
            "name": "orders",
            "partitions": [
                good,
                {"partition_index": 99, "committed_offset": 9, "committed_metadata": None},
                {"partition_index": 1, "committed_offset": 9, "committed_metadata": "é" * 2049},
            ],
        },
        {"name": "nowhere", "partitions": [good]},
    ]
    answer = await world.call("offset_commit", 9, group_id="g", member_id="", topics=topics)
    codes = [p["error_code"] for topic in answer["topics"] for p in topic["partitions"]]
    unknown = ErrorCode.unknown_topic_or_partition
    assert codes == [OK, unknown, ErrorCode.offset_metadata_too_large, unknown]
    assert list(world.group().offsets) == [("orders", 0)]


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (ErrorCode.not_enough_replicas, ErrorCode.coordinator_not_available),
        (ErrorCode.not_leader_or_follower, ErrorCode.not_coordinator),
        (ErrorCode.message_too_large, ErrorCode.invalid_commit_offset_size),
    ],
)
async def test_a_refused_commit_is_told_in_the_coordinators_words(
    world: World, refusal: ErrorCode, told: ErrorCode
) -> None:
    await world.commit(1)
    world.log.refuse = KafkaError(refusal)
    assert await world.commit(2) is told
    assert await world.committed() == 1


async def test_a_log_that_breaks_is_a_retriable_error(world: World) -> None:
    world.log.refuse = OSError("no space left")
    assert await world.commit(2) is ErrorCode.coordinator_not_available


async def test_every_offset_can_be_asked_for_and_many_groups_at_once(world: World) -> None:
    await world.commit(1, partition=0)
    await world.commit(2, partition=3)
    await world.commit(3, topic="clicks", group_id="h")
    answer = await world.call(
        "offset_fetch",
        8,
        groups=[
            {"group_id": "g", "topics": None},
            {"group_id": "h", "topics": [{"name": "clicks", "partition_indexes": [0, 1]}]},
            {"group_id": "nobody", "topics": None},
        ],
    )
    g, h, nobody = answer["groups"]
    assert [(p["partition_index"], p["committed_offset"]) for p in g["topics"][0]["partitions"]] == [
        (0, 1),
        (3, 2),
    ]
    assert [p["committed_offset"] for p in h["topics"][0]["partitions"]] == [3, -1]
    assert nobody == {"group_id": "nobody", "topics": [], "error_code": OK}


async def test_topics_go_by_id_in_the_latest_versions(world: World) -> None:
    asked = {"partition_index": 0, "committed_offset": 11, "committed_metadata": None}
    topics = [{"topic_id": topic_id, "partitions": [asked]} for topic_id in (ORDERS_ID, UUID(int=5))]
    answer = await world.call("offset_commit", 10, group_id="g", member_id="", topics=topics)
    codes = [(topic["topic_id"], topic["partitions"][0]["error_code"]) for topic in answer["topics"]]
    assert codes == [(ORDERS_ID, OK), (UUID(int=5), ErrorCode.unknown_topic_id)]
    wanted = [{"topic_id": topic_id, "partition_indexes": [0]} for topic_id in (ORDERS_ID, UUID(int=5))]
    groups = [{"group_id": "g", "topics": wanted}, {"group_id": "g", "topics": None}]
    named, everything = (await world.call("offset_fetch", 10, groups=groups))["groups"]
    found = [
        (t["partitions"][0]["committed_offset"], t["partitions"][0]["error_code"]) for t in named["topics"]
    ]
    assert found == [(11, OK), (-1, ErrorCode.unknown_topic_id)]
    assert [topic["topic_id"] for topic in everything["topics"]] == [ORDERS_ID]


async def delete_offsets(world: World, topic: str = "orders") -> tuple[ErrorCode, list[ErrorCode]]:
    topics = [{"name": topic, "partitions": [{"partition_index": 0}, {"partition_index": 99}]}]
    answer = await world.call("offset_delete", 0, group_id="g", topics=topics)
    return answer["error_code"], [p["error_code"] for t in answer["topics"] for p in t["partitions"]]


async def test_offsets_are_deleted_for_good(world: World) -> None:
    assert await delete_offsets(world) == (ErrorCode.group_id_not_found, [])
    await world.commit(1, partition=0)
    await world.commit(2, partition=1)
    assert await delete_offsets(world) == (OK, [OK, ErrorCode.unknown_topic_or_partition])
    for now in (world, await World(world.log).load()):
        assert await now.committed(0) == -1
        assert await now.committed(1) == 2


async def test_offsets_of_a_topic_in_use_are_not_deleted(world: World) -> None:
    one = Consumer(world)
    await form(world, one)
    await one.commit(5)
    _, (used, _) = await delete_offsets(world, "orders")
    _, (unused, _) = await delete_offsets(world, "clicks")
    assert (used, unused) == (ErrorCode.group_subscribed_to_topic, OK)
    assert await world.committed() == 5


async def test_a_deleted_topic_takes_its_offsets_along(world: World) -> None:
    for group in ("g", "h"):
        await world.commit(1, group_id=group)
        await world.commit(2, topic="clicks", group_id=group)
    world.topics.names.remove("orders")
    await world.coordinator.forget_topic("orders")
    for now in (world, await World(world.log).load()):
        for group in ("g", "h"):
            assert list(now.group(group).offsets) == [("clicks", 0)]


# -- expiry -----


async def test_offsets_expire_and_then_their_group(world: World) -> None:
    await world.commit(1)
    await world.timers.advance(DAY)
    await world.commit(2, topic="clicks")
    assert await world.coordinator.expire(world.timers.now + 6 * DAY - 1) == 0
    assert await world.coordinator.expire(world.timers.now + 6 * DAY) == 1
    assert list(world.group().offsets) == [("clicks", 0)]
    assert await world.coordinator.expire(world.timers.now + 7 * DAY) == 1
    for now in (world, await World(world.log).load()):
        assert list(now.coordinator.groups()) == []


async def test_retention_counts_from_when_the_last_member_left(world: World) -> None:
    one = Consumer(world)
    one.session = 1800 * SECOND
    await form(world, one)
    await one.commit(1)
    committed_at = world.timers.now
    assert await world.coordinator.expire(committed_at + 100 * DAY) == 0
    await world.timers.advance(1000 * SECOND)
    await one.leave()
    assert await world.coordinator.expire(committed_at + 7 * DAY) == 0
    assert await world.coordinator.expire(committed_at + 7 * DAY + 1000 * SECOND) == 1


async def test_a_live_group_loses_what_it_no_longer_reads(world: World) -> None:
    one = Consumer(world)
    await form(world, one)
    await one.commit(1)
    await world.commit(
        2,
        topic="clicks",
        member_id=one.member_id,
        generation_id_or_member_epoch=1,
    )
    assert await world.coordinator.expire(world.timers.now + 7 * DAY) == 1
    assert list(world.group().offsets) == [("orders", 0)]


async def test_old_clients_choose_their_own_retention(world: World) -> None:
    asked = {"partition_index": 0, "committed_offset": 1, "committed_metadata": None}
    await world.call(
        "offset_commit",
        2,
        group_id="g",
        member_id="",
        retention_time=5 * SECOND,
        topics=[{"name": "orders", "partitions": [asked]}],
    )
    reloaded = await World(world.log).load()
    assert await reloaded.coordinator.expire(world.timers.now + 4 * SECOND) == 0
    assert await reloaded.coordinator.expire(world.timers.now + 5 * SECOND) == 1


async def test_a_commit_on_its_way_saves_an_offset_from_expiry(world: World) -> None:
    await world.commit(1)
    await world.timers.advance(8 * DAY)
    world.log.gate.clear()
    commit = asyncio.create_task(world.commit(2))
    await settle()
    expiry = asyncio.create_task(world.coordinator.expire(world.timers.now))
    await settle()
    world.log.gate.set()
    assert await commit is OK
    assert await expiry == 0
    for now in (world, await World(world.log).load()):
        assert await now.committed() == 2


async def test_a_group_someone_is_about_to_join_is_not_expired(world: World) -> None:
    one = Consumer(world)
    await one.join_once()
    await world.coordinator.expire(world.timers.now + 100 * DAY)
    await form(world, one)


# -- groups as a whole -----


async def delete_group(world: World, group: str = "g") -> ErrorCode:
    answer = await world.call("delete_groups", 2, groups_names=[group])
    code: ErrorCode = answer["results"][0]["error_code"]
    return code


async def test_only_an_empty_group_is_deleted_and_for_good(world: World) -> None:
    one = Consumer(world)
    assert await delete_group(world) is ErrorCode.group_id_not_found
    await form(world, one)
    await one.commit(5)
    assert await delete_group(world) is ErrorCode.non_empty_group
    await one.leave()
    assert await delete_group(world) is OK
    for now in (world, await World(world.log).load()):
        assert list(now.coordinator.groups()) == []
        assert await now.committed() == -1


async def test_a_commit_on_its_way_does_not_outlive_its_group(world: World) -> None:
    await world.commit(1)
    world.log.gate.clear()
    commit = asyncio.create_task(world.commit(2, partition=3))
    await settle()
    deletion = asyncio.create_task(delete_group(world))
    await settle()
    assert await world.commit(3) is ErrorCode.coordinator_not_available
    world.log.gate.set()
    assert await commit is await deletion is OK
    for now in (world, await World(world.log).load()):
        assert await now.committed(3) == -1


async def test_a_group_whose_deletion_failed_is_still_there(world: World) -> None:
    await world.commit(1)
    world.log.refuse = KafkaError(ErrorCode.not_enough_replicas)
    assert await delete_group(world) is ErrorCode.coordinator_not_available
    assert await world.committed() == 1
    world.log.refuse = None
    assert await world.commit(2) is OK


async def test_groups_are_described(world: World) -> None:
    one = Consumer(world, "i1")
    await form(world, one)
    answer = await world.call(
        "describe_groups", 6, groups=["g", "nobody"], include_authorized_operations=False
    )
    described, missing = answer["groups"]
    assert described["group_state"] == "Stable"
    assert (described["protocol_type"], described["protocol_data"]) == ("consumer", "range")
    (member,) = described["members"]
    assert member == {
        "member_id": one.member_id,
        "group_instance_id": "i1",
        "client_id": "app",
        "client_host": "/10.0.0.1",
        "member_metadata": subscription("orders"),
        "member_assignment": f"part of {one.member_id}".encode(),
    }
    assert missing["error_code"] is ErrorCode.group_id_not_found
    (missing,) = (await world.call("describe_groups", 0, groups=["nobody"]))["groups"]
    assert (missing["error_code"], missing["group_state"]) == (OK, "Dead")


async def test_a_group_between_generations_shows_its_members_without_their_parts(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    await form(world, one)
    await begin(two)
    (described,) = (await world.call("describe_groups", 0, groups=["g"]))["groups"]
    assert described["group_state"] == "PreparingRebalance"
    assert described["protocol_data"] == ""
    assert [m["member_assignment"] for m in described["members"]] == [b"", b""]


async def test_groups_are_listed_by_state_and_type(world: World) -> None:
    await form(world, Consumer(world))
    await world.commit(1, group_id="simple")

    async def listed(**filters: Any) -> set[str]:
        answer = await world.call("list_groups", 5, **filters)
        assert answer["error_code"] is OK
        return {group["group_id"] for group in answer["groups"]}

    assert await listed() == {"g", "simple"}
    assert await listed(states_filter=["stable"]) == {"g"}
    assert await listed(states_filter=["Empty", "Dead"]) == {"simple"}
    assert await listed(types_filter=["Classic"]) == {"g", "simple"}
    assert await listed(types_filter=["consumer"]) == set()
    listed_g = (await world.call("list_groups", 5, states_filter=["Stable"]))["groups"]
    assert listed_g == [
        {"group_id": "g", "protocol_type": "consumer", "group_state": "Stable", "group_type": "classic"}
    ]


# -- restarts and moves -----


async def test_a_new_coordinator_goes_on_where_the_last_one_was(world: World) -> None:
    one, two = Consumer(world), Consumer(world, "i2")
    await form(world, one, two)
    await one.commit(42)
    successor = await World(world.log).load()
    assert successor.group() == world.group()
    one.world = two.world = successor
    assert await one.heartbeat() is await two.heartbeat() is OK
    assert await one.commit(43) is OK
    assert await successor.committed() == 43
    assert (await two.sync())["assignment"] == f"part of {two.member_id}".encode()
    back = Consumer(successor, "i2")
    assert (await back.join())["generation_id"] == 1


async def test_after_a_restart_members_have_a_whole_session(world: World) -> None:
    one, dead = Consumer(world), Consumer(world)
    await form(world, one, dead)
    successor = await World(world.log).load()
    one.world = successor
    await successor.timers.advance(9 * SECOND)
    assert await one.heartbeat() is OK
    await successor.timers.advance(2 * SECOND)
    assert await one.heartbeat() is ErrorCode.rebalance_in_progress


async def test_an_emptied_group_is_empty_after_a_restart(world: World) -> None:
    one = Consumer(world)
    await form(world, one)
    await one.commit(7)
    await one.leave()
    await settle()
    successor = await World(world.log).load()
    assert successor.group().state == "Empty"
    assert successor.group().generation == 2
    assert await successor.committed() == 7
    one = Consumer(successor)
    await form(successor, one)
    assert one.generation == 3


async def test_while_loading_members_are_told_to_wait() -> None:
    log = MemoryLog()
    before = await World(log).load()
    member = Consumer(before)
    await form(before, member)
    await member.commit(5)
    log.reading.clear()
    world = World(log)
    loading = asyncio.create_task(world.coordinator.load(log.partition_for("g")))
    await settle()
    wait = ErrorCode.coordinator_load_in_progress
    member.world = world
    assert (await Consumer(world).join())["error_code"] is wait
    assert await member.commit(6) is wait
    assert await member.heartbeat() is OK
    assert (await world.call("list_groups", 4))["error_code"] is wait
    asked = [{"name": "orders", "partition_indexes": [0]}]
    assert (await world.call("offset_fetch", 7, group_id="g", topics=asked))["error_code"] is wait
    old = await world.call("offset_fetch", 1, group_id="g", topics=asked)
    assert old["topics"][0]["partitions"][0]["error_code"] is wait
    log.reading.set()
    await loading
    assert await member.heartbeat() is OK
    assert await world.committed() == 5


async def test_a_group_of_another_broker_is_refused_everywhere() -> None:
    world = World()
    member = Consumer(world)
    elsewhere = ErrorCode.not_coordinator
    assert (await member.join())["error_code"] is elsewhere
    assert (await member.sync())["error_code"] is elsewhere
    assert await member.heartbeat() is elsewhere
    assert await member.commit(1) is elsewhere
    assert await delete_group(world) is elsewhere
    assert await delete_offsets(world) == (elsewhere, [])
    assert (await world.call("leave_group", 5, group_id="g", members=[]))["error_code"] is elsewhere
    (described,) = (await world.call("describe_groups", 0, groups=["g"]))["groups"]
    assert described["error_code"] is elsewhere
    assert (await world.call("list_groups", 4))["groups"] == []


async def test_who_waits_is_told_when_the_group_moves_away(world: World) -> None:
    one, two = Consumer(world), Consumer(world)
    await form(world, one)
    (joining,) = await begin(two)
    world.coordinator.unload(world.log.partition_for("g"))
    assert (await joining)["error_code"] is ErrorCode.not_coordinator
    assert await one.heartbeat() is ErrorCode.not_coordinator
    assert list(world.coordinator.groups()) == []
    assert world.timers.armed == 0


async def test_a_partition_taken_away_while_it_loads_is_not_served(world: World) -> None:
    await form(world, Consumer(world))
    world.log.reading.clear()
    successor = World(world.log)
    partition = world.log.partition_for("g")
    loading = asyncio.create_task(successor.coordinator.load(partition))
    await settle()
    successor.coordinator.unload(partition)
    world.log.reading.set()
    await loading
    assert await successor.commit(1) is ErrorCode.not_coordinator
    assert successor.timers.armed == 0


async def test_a_partition_that_cannot_be_read_is_not_served(world: World) -> None:
    await world.commit(1)
    partition = world.log.partition_for("g")
    world.log.batches[partition][0] = world.log.batches[partition][0][:-1] + b"?"
    successor = World(world.log)
    with pytest.raises(ValueError, match="CRC"):
        await successor.coordinator.load(partition)
    assert await successor.commit(1) is ErrorCode.not_coordinator


# -- versions -----

SERVED = {
    "join_group": range(10),
    "sync_group": range(6),
    "heartbeat": range(5),
    "leave_group": range(6),
    "offset_commit": range(2, 11),
    "offset_fetch": range(1, 11),
    "offset_delete": range(1),
    "describe_groups": range(7),
    "list_groups": range(6),
    "delete_groups": range(3),
}


@pytest.mark.parametrize(("api", "version"), [(api, version) for api in SERVED for version in SERVED[api]])
@pytest.mark.parametrize("ours", [True, False])
async def test_every_version_gets_an_answer_it_can_carry(api: str, version: int, ours: bool) -> None:
    """`World.call` builds and writes the response in that version."""
    world = World()
    if ours:
        await world.load()
        await world.commit(5, topic="orders")
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "m"}
    names = {"name": "orders", "topic_id": ORDERS_ID}
    topics = [{**names, "partitions": [partition], "partition_indexes": [0]}]
    call = await world.start(
        api,
        version,
        group_id="g",
        session_timeout=10 * SECOND,
        rebalance_timeout=10 * SECOND,
        member_id="",
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
        generation_id=-1,
        assignments=[],
        members=[{"member_id": "m", "group_instance_id": None}],
        topics=topics,
        groups=["g", "nobody"] if api == "describe_groups" else [{"group_id": "g", "topics": topics}],
        groups_names=["g"],
        include_authorized_operations=False,
    )
    await world.timers.advance(0)
    await call


class LedPartition:
    """As much of a partition's log as a takeover looks at."""

    def __init__(self, partition: int, term: int) -> None:
        self.partition = partition
        self.term = term
        self.high_watermark = self.epoch_start = 1


async def test_a_takeover_reads_again_when_the_disk_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await world.commit(7) == ErrorCode.none
    partition = world.log.partition_for("g")
    world.coordinator.unload(partition)
    load, failures = world.coordinator.load, [OSError("disk"), OSError("disk")]

    async def failing(partition: int) -> None:
        if failures:
            raise failures.pop()
        await load(partition)

    monkeypatch.setattr(world.coordinator, "load", failing)
    monkeypatch.setattr("penstock.broker.groups.takeover.RETRY", 0)
    await take_over(cast(PartitionLog, LedPartition(partition, 1)), world.coordinator)
    assert world.group("g").group_id == "g"


async def test_a_takeover_that_comes_too_late_leaves_the_next_one_alone(world: World) -> None:
    """The broker led, lost it and leads again while it still reads for the first time."""
    assert await world.commit(7) == ErrorCode.none
    partition = world.log.partition_for("g")
    world.coordinator.unload(partition)
    world.log.reading.clear()
    led = LedPartition(partition, 1)
    first = asyncio.create_task(take_over(cast(PartitionLog, led), world.coordinator))
    await settle()
    led.term = 2
    world.coordinator.unload(partition)
    second = asyncio.create_task(take_over(cast(PartitionLog, led), world.coordinator))
    await settle()
    world.log.reading.set()
    await asyncio.gather(first, second)
    assert world.group("g").group_id == "g"
