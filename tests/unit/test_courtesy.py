"""How long catching up rests: fair to producers, quick when nobody else needs the time."""

from __future__ import annotations

import time

from penstock.replication.courtesy import Courtesy, thread_demand


class Clock:
    def __init__(self) -> None:
        self.now = 100.0
        self.demanded = 7.0

    def go_on(self, seconds: float, busy: float) -> None:
        self.now += seconds
        self.demanded += seconds * busy


def test_half_of_the_time_while_there_is_some_to_spare() -> None:
    clock = Clock()
    courtesy = Courtesy(lambda: clock.now, lambda: clock.demanded)
    clock.go_on(0.02, busy=0.6)
    assert courtesy.rest(0.01) == 0.01


def test_a_tenth_of_the_time_of_a_busy_broker_and_half_again_afterwards() -> None:
    clock = Clock()
    courtesy = Courtesy(lambda: clock.now, lambda: clock.demanded)
    clock.go_on(0.02, busy=0.99)
    assert courtesy.rest(0.01) == 0.09
    clock.go_on(0.05, busy=0.3)
    assert courtesy.rest(0.01) == 0.01


def test_a_rest_is_never_nothing_and_never_so_long_that_a_backup_seems_forgotten() -> None:
    clock = Clock()
    courtesy = Courtesy(lambda: clock.now, lambda: clock.demanded)
    assert courtesy.rest(0.0) == 0.001
    clock.go_on(5.0, busy=1.0)
    assert courtesy.rest(5.0) == 0.3


def test_a_thread_demands_time_while_it_works_and_none_while_it_sleeps() -> None:
    before = thread_demand()
    time.sleep(0.2)
    slept = thread_demand() - before
    until = time.monotonic() + 0.2
    while time.monotonic() < until:
        pass
    worked = thread_demand() - before - slept
    assert slept < 0.05
    assert 0.15 < worked < 0.3
