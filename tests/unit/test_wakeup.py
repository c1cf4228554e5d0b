"""When the kernel wakes a connection, and whose descriptor that takes."""

from __future__ import annotations

import asyncio
import gc
import socket
from types import SimpleNamespace
from typing import cast

from penstock.wire.wakeup import WORTH_WAITING, Wakeup


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def transport_of(connection: socket.socket) -> asyncio.BaseTransport:
    return cast(asyncio.BaseTransport, SimpleNamespace(get_extra_info=lambda name: connection))


def test_the_rest_of_a_large_frame_is_waited_for_and_the_next_one_is_not() -> None:
    here, there = tcp_pair()
    with here, there:
        wakeup = Wakeup(transport_of(here))
        for missing, wanted in ((WORTH_WAITING, WORTH_WAITING), (0, 1)):
            wakeup.await_rest(missing, 1 << 20)
            assert here.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == wanted
        wakeup.close()
        here.sendall(b"still open")
        assert there.recv(100) == b"still open"


def test_one_that_is_forgotten_closes_no_connection() -> None:
    """uvloop tells a protocol nothing more if its dialling was cancelled just when it was made."""
    here, there = tcp_pair()
    with here, there:
        wakeup = Wakeup(transport_of(here))
        del wakeup
        gc.collect()
        here.sendall(b"still open")
        assert there.recv(100) == b"still open"


def test_a_connection_ends_when_both_are_closed() -> None:
    here, there = tcp_pair()
    with there:
        wakeup = Wakeup(transport_of(here))
        here.close()
        wakeup.close()
        there.settimeout(5)
        assert there.recv(100) == b""
