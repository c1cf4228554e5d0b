"""What the handlers of one broker share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.broker.catalog import Catalog
from penstock.broker.stats import RequestStats
from penstock.cluster.topics import TopicRegistry
from penstock.log.store import LogStore

if TYPE_CHECKING:
    from penstock.broker.cluster import ClusterNode


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        host, separator, port = text.rpartition(":")
        if not separator or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{text!r} is not HOST:PORT")
        return cls(host.strip("[]") or "127.0.0.1", int(port))


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    partitions: int
    auto_create: bool
    offsets_partitions: int
    replication: int = 1


@dataclass(frozen=True, slots=True)
class BrokerContext:
    broker_id: int
    rack: str | None
    address: Callable[[], Address]
    """Where clients are told to connect; known once the socket is bound."""
    spark_host: str | None
    """What Spark calls this machine, if not by that address."""
    registry: TopicRegistry
    catalog: Catalog
    store: LogStore
    stats: RequestStats
    defaults: TopicDefaults
    on_topic_deleted: list[Callable[[str], None]]
    cluster: ClusterNode | None = None
    """None: the only broker there is."""
