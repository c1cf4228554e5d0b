"""Runs N brokers as child processes: starts them, restarts one that dies, stops them one after the other.

Called by `penstock node`. Each broker has its own id, ports and directories, derived from one set of
settings by `brokers_of`; Kafka clients route by themselves. A broker that dies comes back at once, then
ever later while it keeps dying; brokers whose supervisor is gone stop by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.settings import Settings

log = logging.getLogger(__name__)

FIRST_PAUSE: Final = 0.1
LONGEST_PAUSE: Final = 10.0
STEADY: Final = 30.0
"""A broker that lived this long is restarted at once when it dies."""
STOP_SECONDS: Final = 15.0
_PR_SET_PDEATHSIG: Final = 1
_READY_IN_JSON: Final = '"message": "ready:'


def brokers_of(settings: Settings, count: int) -> list[Settings]:
    """One broker's settings each: ids and ports count up from those given; memory is shared out.

    The node's own HTTP is at the given address; its brokers' are on the ports after it.
    """
    return [
        settings.model_copy(
            update={
                "broker_id": settings.broker_id + number,
                "listen": _shifted(settings.listen, number),
                "advertise": settings.advertise and _shifted(settings.advertise, number),
                "external_listen": settings.external_listen and _shifted(settings.external_listen, number),
                "external_advertise": settings.external_advertise
                and _shifted(settings.external_advertise, number),
                "http": _shifted(settings.http, number + 1),
                "replication_listen": _shifted(settings.replication_listen, number),
                "replication_advertise": settings.replication_advertise
                and _shifted(settings.replication_advertise, number),
                "data_dir": settings.data_dir / f"broker-{settings.broker_id + number}",
                "memory": settings.memory // count,
                "request_memory": settings.request_memory // count,
            }
        )
        for number in range(count)
    ]


def _shifted(address: str, by: int) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + by}"


@dataclass(slots=True)
class Child:
    """One broker, as its supervisor sees it."""

    settings: Settings
    pid: int | None = None
    ready: bool = False
    restarts: int = 0
    last_exit: int | None = None
    process: asyncio.subprocess.Process | None = None

    @property
    def broker_id(self) -> int:
        return self.settings.broker_id


class Supervisor:
    def __init__(
        self,
        brokers: Sequence[Settings],
        command: Callable[[Settings], Sequence[str]],
        environment: Callable[[Settings], dict[str, str]],
        tell: Callable[[int, str], None],
    ) -> None:
        """`tell` gets every line that a broker prints."""
        self.children = [Child(settings) for settings in brokers]
        self._command = command
        self._environment = environment
        self._tell = tell
        self._stopping = False
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._tasks = [asyncio.create_task(self._keep(child)) for child in self.children]

    async def all_ready(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: all(child.ready for child in self.children))

    async def stop(self) -> None:
        """One after the other, so that each can hand its leaderships to one that still serves."""
        self._stopping = True
        for child, task in zip(self.children, self._tasks, strict=True):
            process = child.process
            if process is None or process.returncode is not None:
                task.cancel()  # between two lives
            else:
                with contextlib.suppress(ProcessLookupError):
                    process.terminate()
            try:
                await asyncio.wait_for(asyncio.gather(task, return_exceptions=True), STOP_SECONDS)
            except TimeoutError:
                log.error("broker %d doesn't stop: killing it", child.broker_id)
                if process is not None:
                    process.kill()

    async def _keep(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE
        while not self._stopping:
            began = loop.time()
            await self._live(child)
            if self._stopping:
                return
            lived = loop.time() - began
            pause = FIRST_PAUSE if lived > STEADY else min(LONGEST_PAUSE, pause * 2)
            log.error(
                "broker %d ended with %s after %.1f s: starting it again in %.1f s",
                child.broker_id,
                child.last_exit,
                lived,
                pause,
            )
            child.restarts += 1
            await asyncio.sleep(pause)

    async def _live(self, child: Child) -> None:
        """One life of a broker, from its start to its end."""
        process = child.process = await asyncio.create_subprocess_exec(
            *self._command(child.settings),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment(child.settings),
            preexec_fn=_stop_with_parent,
            start_new_session=True,  # Ctrl-C is for the supervisor, which stops them in turn
        )
        child.pid = process.pid
        assert process.stdout is not None
        async for line in process.stdout:
            text = line.decode(errors="replace").rstrip("\n")
            if text.startswith("ready:") or _READY_IN_JSON in text:
                await self._note(child, ready=True)
            self._tell(child.broker_id, text)
        child.last_exit = await process.wait()
        child.pid = None
        await self._note(child, ready=False)

    async def _note(self, child: Child, *, ready: bool) -> None:
        async with self._changed:
            child.ready = ready
            self._changed.notify_all()


def _stop_with_parent() -> None:
    """In the child, before it becomes a broker: a clean stop if the supervisor dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def broker_command(settings: Settings) -> list[str]:
    """A broker that is told everything by its environment."""
    return [sys.executable, "-m", "penstock.cli.main", "broker"]
