"""Idle strategies: quick after work, cheap in the long quiet."""

from __future__ import annotations

from penstock.shm.idle import BackOff, Park, Spin, Yield


def test_back_off_spins_then_yields_then_parks_for_doubling_times() -> None:
    slept: list[float] = []
    idle = BackOff(spins=3, yields=2, shortest=1, longest=4, sleep=slept.append)
    for _ in range(5):
        idle.idle(0)
    assert slept == []
    for _ in range(4):
        idle.idle(0)
    assert slept == [1, 2, 4, 4]


def test_work_resets_back_off() -> None:
    slept: list[float] = []
    idle = BackOff(spins=0, yields=0, shortest=1, longest=8, sleep=slept.append)
    idle.idle(0)
    idle.idle(0)
    idle.idle(3)
    idle.idle(0)
    assert slept == [1, 2, 1]


def test_park_sleeps_only_without_work() -> None:
    slept: list[float] = []
    idle = Park(0.5, sleep=slept.append)
    idle.idle(1)
    idle.idle(0)
    idle.reset()
    assert slept == [0.5]


def test_spin_and_yield_do_not_sleep() -> None:
    for idle in (Spin(), Yield()):
        for _ in range(1000):
            idle.idle(0)
        idle.reset()
