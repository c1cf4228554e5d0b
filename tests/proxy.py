"""A proxy between a client and a server that forwards, says nothing, or hangs up, as a test wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self


def everything(_: bytes) -> bool:
    return True


def nothing(_: bytes) -> bool:
    return False


class Proxy:
    def __init__(self, port: int) -> None:
        self._target = port
        self.port = 0
        self.swallows: Callable[[bytes], bool] = nothing
        """What is lost on its way, in either direction. With `everything` the machine has vanished: no
        byte, no reset, and a new connection is not answered."""
        self.hangs_up_after: Callable[[bytes], bool] = nothing
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._target)
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._forward(source, sink, (writer, there_writer)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _forward(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        try:
            while said := await source.read(1 << 16):
                if self.swallows(said):
                    continue
                sink.write(said)
                await sink.drain()
                if self.hangs_up_after(said):
                    break
        except OSError:
            pass
        finally:
            for end in ends:
                end.close()
