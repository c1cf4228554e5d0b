"""Brokers as the cluster sees them, and this broker's own place among them, kept by a lease.

    /brokers/<id>   addresses, rack, incarnation; goes when the broker's lease runs out

A broker that can't reach etcd goes on serving and comes back by itself: nothing about safety hangs on
the lease, it only tells others that somebody is out of touch.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from penstock.cluster.etcd import EtcdMetadata
from penstock.cluster.metadata import Change, Unavailable

log = logging.getLogger(__name__)

PREFIX: Final = "/brokers/"


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    broker_id: int
    host: str
    port: int
    replication_host: str
    replication_port: int
    rack: str | None
    incarnation: int
    http: str = ""
    external: str = ""
    """HOST:PORT for clients that come through the second door; empty if there is none."""

    @property
    def http_address(self) -> str:
        """Where its HTTP can be asked from elsewhere: a wildcard is reached where clients are."""
        host, _, port = self.http.rpartition(":")
        return f"{self.host}:{port}" if host in ("0.0.0.0", "::", "[::]", "") else self.http

    @classmethod
    def decode(cls, value: Any) -> BrokerInfo:
        # A newer broker may say more than this one knows: they meet in every rolling upgrade.
        known = {field.name for field in fields(cls)}
        return cls(**{name: each for name, each in value.items() if name in known})


class Registration:
    """Keeps this broker's key while the process lives; `leave` takes it away at once."""

    def __init__(self, store: EtcdMetadata, info: BrokerInfo, seconds: float) -> None:
        self._store = store
        self._info = info
        self._seconds = seconds
        self._lease: str | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._register()
        self._task = asyncio.create_task(self._keep(), name="registration")

    async def leave(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._lease is not None:
            try:
                await self._store.revoke(self._lease)
            except Unavailable as error:
                log.warning("leaving without a word, etcd can't be reached: %s", error)

    async def _register(self) -> None:
        key = f"{PREFIX}{self._info.broker_id}"
        while True:
            lease = await self._store.grant(self._seconds)  # each time: the last one may have run out
            found = await self._store.get(key)
            if await self._store.swap(
                [Change(key, asdict(self._info), found.revision if found else 0)], lease
            ):
                self._lease = lease  # not before: a lease that is kept alive without the key says nothing
                return

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / 3)
            try:
                if self._lease is None or not await self._store.keep_alive(self._lease):
                    log.warning("the lease of broker %d ran out: registering again", self._info.broker_id)
                    self._lease = None
                    await self._register()
            except Unavailable:
                pass  # said by the store already; the next round tries again
