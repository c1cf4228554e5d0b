"""When the kernel wakes a connection: for the rest of a large frame, not for each packet of it.

Waking costs both sides: the sender, whose system call does it, and the receiver, who finds half a frame.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

WORTH_WAITING: Final = 16 * 1024
MOST_AT_ONCE: Final = 256 * 1024
"""Of a larger frame the receiver sees that it moves, and has copied most of it when its end comes."""


class Wakeup:
    __slots__ = ("_awaits", "_socket")

    def __init__(self, transport: asyncio.BaseTransport) -> None:
        self._awaits = 1
        self._socket: socket.socket | None = None
        known = transport.get_extra_info("socket")
        if known is not None and known.family != socket.AF_UNIX:
            # uvloop's stand-in is slow to set options. A descriptor of its own: this one closes what it has
            # when it is forgotten, and by then the transport's number may be another connection's.
            self._socket = socket.socket(fileno=os.dup(known.fileno()))

    def await_rest(self, missing: int, room: int) -> None:
        """So much is missing of a frame (0: none has begun), and there is room for so much."""
        wanted = 1
        if missing >= WORTH_WAITING:
            wanted = max(1, min(missing, MOST_AT_ONCE, room))
        if wanted != self._awaits and self._socket is not None:
            self._awaits = wanted
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wanted)

    def close(self) -> None:
        """With the transport: the connection is open for as long as this is."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
