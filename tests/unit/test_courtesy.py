"""How long catching up rests: fair to producers, quick when nobody else needs the time."""

from __future__ import annotations

import time

import pytest

from penstock.replication.courtesy import Courtesy, thread_demand

CHUNK = 0.004
"""Seconds that one is on its way."""


class Broker:
    """Its time and how much of it is asked for: by producers, and for each chunk by its copying."""

    def __init__(self, producers: float, copying: float = 0.002) -> None:
        self.now = 100.0
        self.demanded = 7.0
        self.producers = producers
        self.copying = copying
        self.courtesy = Courtesy(lambda: self.now, lambda: self.demanded)
        self.last_rest = 0.0

    def copy(self, seconds: float) -> float:
        """The share of them that a chunk was on its way."""
        began, chunks = self.now, 0
        while self.now < began + seconds:
            self.last_rest = self.courtesy.rest(CHUNK)
            passed = CHUNK + self.last_rest
            self.now += passed
            # Whoever asks for more than there is waits in line, which is demand too, but no more than all.
            self.demanded += min(passed, passed * self.producers + self.copying)
            chunks += 1
        return chunks * CHUNK / (self.now - began)


def test_next_to_no_rest_while_there_is_time_to_spare() -> None:
    broker = Broker(producers=0.1)
    broker.copy(2.0)
    assert broker.last_rest == 0.001


def test_a_tenth_of_the_time_of_a_broker_that_is_busy_without_it() -> None:
    broker = Broker(producers=1.0)
    broker.copy(2.0)
    assert broker.last_rest == pytest.approx(9 * CHUNK)


def test_what_producers_leave_is_used() -> None:
    """Of a broker that they keep half busy a tenth would do no harm, and take for ever."""
    broker = Broker(producers=0.5)
    broker.copy(2.0)
    share = broker.copy(10.0)
    assert 0.25 < share < 0.6
    assert broker.producers + share / CHUNK * broker.copying < 0.95


def test_a_burst_is_forgotten_also_when_producers_leave_little() -> None:
    broker = Broker(producers=1.0, copying=0.001)
    broker.copy(2.0)
    broker.producers = 0.65
    broker.copy(2.0)
    assert 0.12 < broker.copy(10.0) < 0.3


def test_it_comes_back_when_producers_stop() -> None:
    broker = Broker(producers=1.0)
    broker.copy(2.0)
    broker.producers = 0.0
    broker.copy(3.0)
    assert broker.last_rest == 0.001


def test_a_rest_is_never_so_long_that_a_backup_seems_forgotten() -> None:
    broker = Broker(producers=1.0)
    broker.copy(2.0)
    assert broker.courtesy.rest(5.0) == 0.3


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
