"""Random schedules of faults on a simulated cluster: acknowledged records stay, and only they.

Everything comes from the seed: how many brokers, how long, the faults, the load, each delay.
"""

from __future__ import annotations

import asyncio
from typing import Final

from simulation import SimBroker, World, simulate

from penstock.wire.errors import ErrorCode

SECONDS: Final = (*[1.0] * 5, *[2.0] * 8, *[3.0] * 6, 12.0)
"""How long faults go on: many short schedules find more in the same time than a few long ones, but what needs
one fault on top of the leftovers of many others has its chance, too."""
KINDS: Final = (
    "crash",
    "crash",
    "lose",
    "stall",
    "one way",
    "isolate",
    "away",
    "answers",
    "hand over",
    "move",
)


def play(seed: int) -> World:
    """Raises AssertionError if the cluster breaks a promise, or doesn't recover."""
    world = World(seed, 2 + seed % 2, {"durability": "disk"} if seed % 5 == 4 else None)
    try:
        simulate(schedule(world, world.chance.choice(SECONDS)))
    finally:
        world.close()
    return world


async def schedule(world: World, seconds: float) -> None:
    """Faults and load for a while, then quiet, then the verdict."""
    chance = world.chance
    loop = asyncio.get_running_loop()
    await world.start()
    await world.in_sync(len(world.brokers))
    stop = loop.time() + seconds

    async def load() -> None:
        while loop.time() < stop:
            await world.produce(timeout=2.0)
            await asyncio.sleep(chance.uniform(0, 0.06))

    async def watch() -> None:
        while loop.time() < stop:
            world.read_all()
            await asyncio.sleep(chance.uniform(0, 0.1))

    clients = [asyncio.create_task(load()) for _ in range(3)] + [asyncio.create_task(watch())]
    await asyncio.gather(*(faults(world, stop) for _ in range(2)))
    await asyncio.gather(*clients)
    world.network.stalled.clear()
    for each in world.brokers.values():
        each.metadata.away, each.metadata.loses_answers = False, 0.0
    await world.until(world.settled)
    world.read_all()
    world.check()
    deadline = loop.time() + 10
    while await world.produce() is not ErrorCode.none:
        assert loop.time() < deadline, "all is well, but nothing is taken"
        await asyncio.sleep(0.05)


async def faults(world: World, stop: float) -> None:
    """One fault after the other; several of these run at once."""
    chance = world.chance
    loop = asyncio.get_running_loop()
    while loop.time() < stop:
        await asyncio.sleep(chance.uniform(0, 1.0))
        broker = victim(world)
        others = [b for b in world.brokers.values() if b is not broker]
        other = chance.choice(others)
        fault = chance.choice(KINDS)
        pair = both_ways(broker, other)
        if fault in ("crash", "lose") and broker.alive:
            broker.crash()
            if fault == "lose" and spared(world, broker):
                broker.lose_storage() if chance.random() < 0.5 else broker.lose_memory()
            await asyncio.sleep(chance.choice([0.01, 0.5, 2.0]))
            if chance.random() < 0.5:
                world.keys.put(f"/brokers/{broker.number}", None)  # its lease ran out
            await broker.start()
        elif fault in ("stall", "one way"):
            world.network.stalled |= pair if fault == "stall" else {(broker.number, other.number)}
            await asyncio.sleep(chance.choice([0.1, 0.4, 1.5]))
            world.network.stalled -= pair
        elif fault == "isolate":
            links = set().union(*(both_ways(broker, each) for each in others))
            world.network.stalled |= links
            broker.metadata.away = chance.random() < 0.5
            await asyncio.sleep(chance.choice([0.4, 0.6, 1.5]))
            world.network.stalled -= links
            # It may meet the others before it hears what was agreed meanwhile.
            await asyncio.sleep(chance.choice([0.0, 0.2]))
            broker.metadata.away = False
        elif fault == "away":
            broker.metadata.away = other.metadata.away = True
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            broker.metadata.away = other.metadata.away = False
        elif fault == "answers":
            broker.metadata.loses_answers = 0.5
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            broker.metadata.loses_answers = 0.0
        elif fault == "move":
            numbers = list(world.brokers)
            world.move(*chance.sample(numbers, chance.randint(1, len(numbers))))
        elif fault == "hand over" and broker.replicator is not None:
            replica = broker.replicator.replicas.get(world.key)
            if replica is not None:
                await broker.replicator.hand_over(replica, None, "chaos")


def victim(world: World) -> SimBroker:
    """Anybody, but the leader oftener than others."""
    leader = world.leader()
    if leader is not None and world.chance.random() < 0.3:
        return leader
    return world.chance.choice(list(world.brokers.values()))


def both_ways(one: SimBroker, other: SimBroker) -> set[tuple[int, int]]:
    return {(one.number, other.number), (other.number, one.number)}


def spared(world: World, victim: SimBroker) -> bool:
    """Whether another member of the in-sync set has its storage: losing them all is beyond the promise."""
    for member in world.state.in_sync if world.state is not None else ():
        broker = world.brokers[member.broker]
        log = broker.log(world.key)
        if broker is not victim and log is not None and log.storage_id == member.storage:
            return True
    return False
