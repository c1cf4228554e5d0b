"""What a topic may configure: names, types, defaults, and the parsed form that the log works with.

Names and meanings are Kafka's, with one of our own: `durability`. Values come as strings, as clients
send them; a value that doesn't parse is a KafkaError that says what would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from penstock.wire.errors import ErrorCode, KafkaError


class Durability(Enum):
    MEMORY = "memory"
    DISK = "disk"


class TimestampType(Enum):
    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


class ConfigType(Enum):
    """The type numbers of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True)
class ConfigKey:
    name: str
    default: str
    type: ConfigType
    parse: Callable[[str], Any]
    doc: str


def _integer(low: int, high: int = (1 << 63) - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise ValueError(f"must be from {low} to {high}")
        return value

    return parse


def _ratio(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise ValueError("must be from 0 to 1")
    return value


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def _never(text: str) -> bool:
    if _boolean(text):
        raise ValueError(
            "no such election comes by itself; `penstock cluster elect TOPIC PARTITION` shows what would be "
            "lost, and does it with --unclean"
        )
    return False


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}")
        return text

    return parse


def _policy(text: str) -> frozenset[str]:
    policies = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not policies or not policies <= {"delete", "compact"}:
        raise ValueError("must be delete, compact or both")
    return policies


_INT_MAX: Final = (1 << 31) - 1
_DAY: Final = 24 * 60 * 60 * 1000
_UNCLEAN: Final = "unclean.leader.election.enable"

TOPIC_CONFIGS: Final[Mapping[str, ConfigKey]] = {
    key.name: key
    for key in (
        ConfigKey("cleanup.policy", "delete", ConfigType.LIST, _policy, "delete, compact or both"),
        ConfigKey(
            "compression.type",
            "producer",
            ConfigType.STRING,
            _choice("producer"),
            "producer: batches are kept as they come",
        ),
        ConfigKey(
            "delete.retention.ms",
            str(_DAY),
            ConfigType.LONG,
            _integer(0),
            "how long compaction keeps a tombstone",
        ),
        ConfigKey(
            "durability",
            "memory",
            ConfigType.STRING,
            _choice("memory", "disk"),
            "memory: acknowledged when every in-sync replica has it in shared memory; "
            "disk: after an fdatasync",
        ),
        ConfigKey(
            "max.message.bytes",
            str(1024 * 1024 + 12),
            ConfigType.INT,
            _integer(0, _INT_MAX),
            "the largest record batch taken",
        ),
        ConfigKey(
            "message.timestamp.type",
            "CreateTime",
            ConfigType.STRING,
            _choice("CreateTime", "LogAppendTime"),
            "whose clock stamps the records",
        ),
        ConfigKey(
            "min.cleanable.dirty.ratio",
            "0.5",
            ConfigType.DOUBLE,
            _ratio,
            "how much of the log must be uncleaned before compaction runs",
        ),
        ConfigKey(
            "min.compaction.lag.ms",
            "0",
            ConfigType.LONG,
            _integer(0),
            "how long a record stays uncompacted at least",
        ),
        ConfigKey(
            "min.insync.replicas",
            "1",
            ConfigType.INT,
            _integer(1, _INT_MAX),
            "acks=all needs this many replicas in sync",
        ),
        ConfigKey(
            "retention.bytes",
            "-1",
            ConfigType.LONG,
            _integer(-1),
            "size of a partition before its old end goes; -1: no limit",
        ),
        ConfigKey(
            "retention.ms",
            str(7 * _DAY),
            ConfigType.LONG,
            _integer(-1),
            "age of a segment before it goes; -1: never",
        ),
        ConfigKey(
            "segment.bytes",
            str(16 * 1024 * 1024),
            ConfigType.INT,
            _integer(1024, 1 << 30),
            "size of a segment, in memory and on disk",
        ),
        ConfigKey(
            "segment.ms", str(7 * _DAY), ConfigType.LONG, _integer(1), "age at which a segment is sealed"
        ),
        ConfigKey(
            _UNCLEAN,
            "false",
            ConfigType.BOOLEAN,
            _never,
            "only false: a replica that may lack acknowledged records leads by an operator's word alone",
        ),
    )
}


def still_taken(configs: Mapping[str, str]) -> dict[str, str]:
    """Configs as an earlier version wrote them down, without what never did anything and is refused now."""
    return {name: text for name, text in configs.items() if not (name == _UNCLEAN and text.lower() == "true")}


@dataclass(frozen=True, slots=True)
class LogConfig:
    """A topic's settings, parsed once."""

    delete: bool
    compact: bool
    delete_retention_ms: int
    durability: Durability
    max_message_bytes: int
    timestamp_type: TimestampType
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_ms: int

    @classmethod
    def parse(cls, overrides: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> LogConfig:
        """Raises KafkaError(INVALID_CONFIG) with the name and what it takes."""
        values: dict[str, Any] = {}
        for name in overrides:
            if name not in TOPIC_CONFIGS:
                raise KafkaError(ErrorCode.invalid_config, f"unknown topic config {name}")
        for name, key in TOPIC_CONFIGS.items():
            text = overrides.get(name, (defaults or {}).get(name, key.default))
            try:
                values[name] = key.parse(text)
            except ValueError as error:
                raise KafkaError(ErrorCode.invalid_config, f"{name}={text}: {error}") from None
        return cls(
            delete="delete" in values["cleanup.policy"],
            compact="compact" in values["cleanup.policy"],
            delete_retention_ms=values["delete.retention.ms"],
            durability=Durability(values["durability"]),
            max_message_bytes=values["max.message.bytes"],
            timestamp_type=TimestampType(values["message.timestamp.type"]),
            min_cleanable_dirty_ratio=values["min.cleanable.dirty.ratio"],
            min_compaction_lag_ms=values["min.compaction.lag.ms"],
            min_insync_replicas=values["min.insync.replicas"],
            retention_bytes=values["retention.bytes"],
            retention_ms=values["retention.ms"],
            segment_bytes=values["segment.bytes"],
            segment_ms=values["segment.ms"],
        )
