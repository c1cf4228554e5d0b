"""Random faults on a simulated cluster: whatever happens, acknowledged records stay, and only they."""

from __future__ import annotations

import asyncio
import os

import pytest
from simulation import SimBroker, World, interpreted, simulate

from penstock.replication import link
from penstock.replication.leadership import Leadership

SEEDS = int(os.environ.get("SIM_SEEDS", "12"))
FIRST = int(os.environ.get("SIM_FIRST", "0"))


async def faults(world: World, stop: float) -> None:
    """One fault after the other; several of these run at once."""
    chance = world.chance
    loop = asyncio.get_running_loop()
    while loop.time() < stop:
        await asyncio.sleep(chance.uniform(0, 1.0))
        broker = chance.choice(list(world.brokers.values()))
        other = chance.choice([b for b in world.brokers.values() if b is not broker])
        fault = chance.choice(["crash", "crash", "stall", "one way", "away", "answers", "lose", "hand over"])
        pair = {(broker.number, other.number), (other.number, broker.number)}
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
        elif fault == "away":
            broker.metadata.away = other.metadata.away = True
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            broker.metadata.away = other.metadata.away = False
        elif fault == "answers":
            broker.metadata.loses_answers = 0.5
            await asyncio.sleep(chance.uniform(0.1, 1.5))
            broker.metadata.loses_answers = 0.0
        elif fault == "hand over" and broker.replicator is not None:
            replica = broker.replicator.replicas.get(world.key)
            if replica is not None:
                await broker.replicator.hand_over(replica, None, "chaos")


def spared(world: World, victim: SimBroker) -> bool:
    """Whether another member of the in-sync set has its storage: losing them all is beyond the promise."""
    for member in world.state.in_sync if world.state is not None else ():
        broker = world.brokers[member.broker]
        log = broker.log(world.key)
        if broker is not victim and log is not None and log.storage_id == member.storage:
            return True
    return False


async def chaos(world: World, seconds: float = 12.0) -> None:
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
    await world.in_sync(len(world.brokers))
    leader = await world.leading()
    log = leader.led(world.key)
    assert log is not None
    await world.until(lambda: log.high_watermark == log.log_end)
    await asyncio.sleep(1)  # backups hear of the watermark
    world.read_all()
    world.check()


def run(seed: int, brokers: int = 3) -> World:
    world = World(seed, brokers, {"durability": "disk"} if seed % 5 == 4 else None)
    try:
        simulate(chaos(world))
    finally:
        world.close()
    return world


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_acknowledged_records_survive_any_schedule(seed: int) -> None:
    world = run(seed, 2 + seed % 2)
    assert len(world.acknowledged) > 40, "the disk may be slow"


def test_a_seed_is_one_schedule() -> None:
    """What fails can be played again."""
    first, second = run(3, 3), run(3, 3)
    assert first.acknowledged == second.acknowledged
    assert first.keys.values == second.keys.values


# Tests of the test: a cluster that breaks a rule is caught.


def caught(seeds: int = 25) -> bool:
    for seed in range(1000, 1000 + seeds):
        try:
            run(seed, 2 + seed % 2)
        except AssertionError as error:
            if "not within" not in str(error):
                return True
    return False


@interpreted
def test_acknowledging_before_the_backups_have_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def eager(self: Leadership) -> None:
        self.log.short_of_replicas = False
        self.log.commit(self.log.log_end)

    monkeypatch.setattr(Leadership, "advance", eager)
    monkeypatch.setattr(Leadership, "appended", eager)
    assert caught()


@interpreted
def test_counting_an_old_tail_as_new_records_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "common_prefix", lambda log, epochs, end: end)
    assert caught()
