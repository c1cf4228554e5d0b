"""uvicorn inside the broker's own event loop.

The socket is bound first, so that a port that is taken is known before anything else is done, and listened
to when Kafka clients are served: FastAPI takes a quarter of a second to import, which would delay every
restart. A probe that comes earlier waits in the socket's queue; if the start takes longer than a second, it
is answered meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import TYPE_CHECKING, Final

from penstock.broker.context import Address

if TYPE_CHECKING:
    from penstock.broker.http.patient import PatientServer
    from penstock.broker.metrics import Metrics
    from penstock.broker.server import Broker

_BACKLOG: Final = 128
_MAX_CONNECTIONS: Final = 256
_LAST_ANSWERS_SECONDS: Final = 1


class HttpServer:
    def __init__(self, listen: str) -> None:
        """Binds; raises OSError that names the address."""
        address = Address.parse(listen)
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        try:
            self._socket = socket.create_server((address.host, address.port), family=family, backlog=_BACKLOG)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error
            raise OSError(f"can't serve HTTP at {address}: {reason}") from None
        port: int = self._socket.getsockname()[1]
        self.url = f"http://{Address(address.host, port)}"
        self._server: PatientServer | None = None
        self._starting = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, broker: Broker) -> None:
        """Answer requests from now on; may be called again."""
        async with self._starting:
            if self._server is None:
                await self._start(broker)

    async def _start(self, broker: Broker) -> None:
        server, metrics = await asyncio.to_thread(_prepare, broker)
        self._server = server
        self._tasks = [
            # Not `serve`, which takes the process's signals; they are the broker's.
            asyncio.create_task(server._serve([self._socket]), name="http"),
            asyncio.create_task(metrics.follow_readers(), name="metrics"),
        ]

    async def stop(self) -> None:
        if self._server is not None:
            serving, following = self._tasks
            following.cancel()
            self._server.tell_to_stop()
            await asyncio.gather(serving, following, return_exceptions=True)
        self._socket.close()


def _prepare(broker: Broker) -> tuple[PatientServer, Metrics]:
    """Imports and builds what takes long; runs on a thread."""
    import uvicorn

    from penstock.broker.http.app import make_app
    from penstock.broker.http.patient import PatientServer
    from penstock.broker.metrics import Metrics

    metrics = Metrics(broker)
    config = uvicorn.Config(
        make_app(broker, metrics),
        loop="none",
        http="h11",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        date_header=False,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_graceful_shutdown=_LAST_ANSWERS_SECONDS,
    )
    config.load()
    return PatientServer(config), metrics
