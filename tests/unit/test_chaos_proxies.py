"""The network of a chaos run on the loopback: it cuts one direction, holds back, and loses no byte."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest
from chaos.network import Weather
from chaos.proxies import CLIENTS, Proxies

from penstock.replication.frames import Kind, message

SILENCE = 0.3
"""Seconds in which anything that is not held back would have come long ago."""
BROKERS = ("broker-1", "broker-2", "broker-3")


@pytest.fixture
def network() -> Proxies:
    return Proxies(list(BROKERS), seed=1)


class Listener:
    """What listens on broker-1."""

    def __init__(self, network: Proxies, held: contextlib.ExitStack) -> None:
        self._network = network
        self._held = held
        self._server = held.enter_context(socket.create_server(("127.77.0.1", 0)))
        self._server.settimeout(SILENCE)
        host, port = self._server.getsockname()
        self._address = f"{host}:{port}"

    def dial(self, sender: str | None = "broker-2") -> socket.socket:
        host, port = self._network.door(sender, "broker-1", self._address).split(":")
        dialled = self._held.enter_context(socket.create_connection((host, int(port)), 5))
        dialled.settimeout(5)
        return dialled

    def answer(self) -> socket.socket:
        answered = self._held.enter_context(self._server.accept()[0])
        answered.settimeout(5)
        return answered

    def pair(self, sender: str | None = "broker-2") -> tuple[socket.socket, socket.socket]:
        dialled = self.dial(sender)
        return dialled, self.answer()


@pytest.fixture
def listener(network: Proxies) -> Iterator[Listener]:
    with contextlib.ExitStack() as held:
        yield Listener(network, held)


def read(end: socket.socket, size: int) -> bytes:
    said = b""
    while len(said) < size:
        more = end.recv(size - len(said))
        assert more, f"it ended after {said!r}"
        said += more
    return said


def is_silent(end: socket.socket) -> bool:
    end.settimeout(SILENCE)
    try:
        end.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        end.settimeout(5)
    return False


def test_one_direction_is_cut_and_what_was_said_meanwhile_comes_afterwards_in_order(
    network: Proxies, listener: Listener
) -> None:
    there, here = listener.pair()
    there.sendall(b"one ")
    assert read(here, 4) == b"one "
    network.drop("broker-2", "broker-1")
    there.sendall(b"two ")
    here.sendall(b"heard?")
    assert read(there, 6) == b"heard?"
    assert is_silent(here)
    there.sendall(b"three")
    network.deliver("broker-2", "broker-1")
    assert read(here, 9) == b"two three"


def test_two_faults_may_cut_the_same_and_the_last_to_heal_mends_it(
    network: Proxies, listener: Listener
) -> None:
    there, here = listener.pair()
    for _ in range(2):
        network.drop("broker-1", "broker-2")
    here.sendall(b"x")
    network.deliver("broker-1", "broker-2")
    assert is_silent(there)
    network.deliver("broker-1", "broker-2")
    assert read(there, 1) == b"x"


@pytest.mark.parametrize("direction", [("broker-1", "broker-2"), ("broker-2", "broker-1")])
def test_nobody_hears_of_a_new_connection_while_either_direction_is_cut(
    network: Proxies, listener: Listener, direction: tuple[str, str]
) -> None:
    network.drop(*direction)
    listener.dial().close()
    patient = listener.dial()
    patient.sendall(b"still here")
    with pytest.raises(TimeoutError):
        listener.answer()
    network.deliver(*direction)
    assert read(listener.answer(), 10) == b"still here"
    with pytest.raises(TimeoutError):
        listener.answer()  # the one that gave up


def test_a_cut_hides_that_the_other_side_is_gone(network: Proxies, listener: Listener) -> None:
    there, here = listener.pair()
    network.drop("broker-1", "broker-2")
    here.close()
    there.sendall(b"are you there?")
    assert is_silent(there)
    network.deliver("broker-1", "broker-2")
    assert there.recv(1) == b""


def test_a_sender_that_is_cut_off_is_stopped_and_loses_nothing(network: Proxies, listener: Listener) -> None:
    there, here = listener.pair()
    network.drop("broker-2", "broker-1")
    there.settimeout(SILENCE)
    sent = bytearray()
    with contextlib.suppress(TimeoutError):
        while len(sent) < 64 << 20:
            said = b"%015d " % len(sent) * 4096
            sent += said[: there.send(said)]
    assert len(sent) < 64 << 20
    network.deliver("broker-2", "broker-1")
    assert read(here, len(sent)) == sent


def test_weather_makes_late_but_neither_loses_nor_shuffles(network: Proxies, listener: Listener) -> None:
    there, here = listener.pair()
    network.hold("broker-2", "broker-1", Weather(0.5, 0.2, 0.3))
    began = time.monotonic()
    for number in range(20):
        there.sendall(b"%04d" % number)
        time.sleep(0.005)
    here.sendall(b"at once")
    assert read(there, 7) == b"at once"
    assert time.monotonic() - began < 0.5
    assert read(here, 80) == b"".join(b"%04d" % number for number in range(20))
    assert time.monotonic() - began >= 0.5
    network.release("broker-2", "broker-1")
    began = time.monotonic()
    there.sendall(b"x")
    assert read(here, 1) == b"x"
    assert time.monotonic() - began < 0.5


def test_whose_connection_to_the_replication_port_it_is_is_told_by_its_first_frame(
    network: Proxies, listener: Listener
) -> None:
    ends = {}
    for number in (2, 3):
        there = listener.dial(None)
        hello = b"".join(bytes(part) for part in message(Kind.HELLO, {"broker": number}))
        there.sendall(hello)
        ends[number] = there, listener.answer()
        assert read(ends[number][1], len(hello)) == hello
    network.drop("broker-2", "broker-1")
    for there, _ in ends.values():
        there.sendall(b"x")
    assert read(ends[3][1], 1) == b"x"
    assert is_silent(ends[2][1])


def test_an_unplugged_machine_is_off_from_clients_too(network: Proxies, listener: Listener) -> None:
    there, here = listener.pair(CLIENTS)
    network.unplug("broker-2")
    there.sendall(b"x")
    assert read(here, 1) == b"x"
    network.unplug("broker-1")
    there.sendall(b"y")
    here.sendall(b"z")
    assert is_silent(here)
    assert is_silent(there)
    network.plug("broker-1")
    assert read(here, 1) == b"y"
    assert read(there, 1) == b"z"


def test_a_dialler_hears_that_nobody_listens(network: Proxies) -> None:
    with socket.create_server(("127.77.0.3", 0)) as away:
        port = away.getsockname()[1]
    host, door = network.door("broker-2", "broker-3", f"127.77.0.3:{port}").split(":")
    with socket.create_connection((host, int(door)), 5) as dialled:
        assert dialled.recv(1) == b""
