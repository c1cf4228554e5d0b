"""A broker's settings: one model, filled from the command line, the environment and a TOML file.

In that order of precedence; `sources` remembers which one each value came from. Sizes are numbers with a
unit (`512MiB`, `8GB`), addresses HOST:PORT.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

_UNITS: Final = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "kb": 1000,
    "m": 1 << 20,
    "mib": 1 << 20,
    "mb": 1000**2,
    "g": 1 << 30,
    "gib": 1 << 30,
    "gb": 1000**3,
}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*")


def parse_size(value: object) -> int:
    """Bytes from 4096, "64KiB", "1.5 GB"."""
    if isinstance(value, int):
        return value
    match = _SIZE.fullmatch(str(value))
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{value!r} is not a size; write it like 512MiB or 2GB")
    return int(float(match[1]) * _UNITS[match[2].lower()])


Size = Annotated[int, BeforeValidator(parse_size)]


def _default_shm() -> Path:
    shared = Path("/dev/shm")
    return (shared if shared.is_dir() else Path(tempfile.gettempdir())) / "penstock"


def _default_memory() -> int:
    """A quarter of what the file system behind shared memory has, 4 GiB at most."""
    try:
        stat = os.statvfs("/dev/shm")
        return max(64 << 20, min(4 << 30, stat.f_frsize * stat.f_blocks // 4))
    except OSError:
        return 256 << 20


class Settings(BaseSettings):
    """Everything a broker can be told. Field names are the option names with underscores."""

    model_config = SettingsConfigDict(env_prefix="PENSTOCK_", extra="forbid")

    broker_id: int = Field(1, ge=0, description="this broker's number in the cluster")
    rack: str | None = Field(None, description="where it stands, for placing replicas")
    listen: str = Field("127.0.0.1:9092", description="where Kafka clients connect")
    advertise: str | None = Field(
        None, description="what clients are told to connect to, if not the listen address"
    )
    external_listen: str | None = Field(
        None, description="a second door, for clients that reach the cluster by other addresses"
    )
    external_advertise: str | None = Field(
        None, description="what clients at the second door are told to connect to"
    )
    http: str = Field("127.0.0.1:9644", description="health, metrics and JSON views")
    data_dir: Path = Field(Path("penstock-data"), description="the log on disk")
    shm_dir: Path = Field(default_factory=_default_shm, description="the log in shared memory")
    cursors_dir: Path | None = Field(
        None, description="what readers write, if not in shm-dir: then they may mount that read-only"
    )
    spark_host: str | None = Field(
        None, description="what Spark calls this machine (its executors' host), if not the advertised host"
    )
    memory: Size = Field(
        default_factory=_default_memory, ge=1 << 20, description="budget for the log in shared memory"
    )
    request_memory: Size = Field(256 << 20, description="budget for requests that are being received")
    max_request: Size = Field(100 << 20, description="largest request taken")
    max_fetch: Size = Field(64 << 20, description="largest fetch response given")
    auto_create_topics: bool = Field(True, description="make a topic when a client asks for its metadata")
    default_partitions: int = Field(1, ge=1, description="partitions of topics made without a number")
    offsets_partitions: int = Field(16, ge=1, description="partitions of __consumer_offsets")
    group_initial_rebalance_ms: int = Field(
        300, ge=0, description="how long a new group waits for more members"
    )
    retention_check_seconds: float = Field(5.0, gt=0, description="how often retention and compaction run")
    topic_defaults: dict[str, str] = Field(
        default_factory=dict, description="topic configs that differ from Kafka's defaults"
    )
    cluster: str | None = Field(
        None, description="etcd endpoints, like http://10.0.0.1:2379,...; without it this is a single node"
    )
    cluster_prefix: str = Field("/penstock", description="where in etcd this cluster's keys are")
    replication_listen: str = Field("127.0.0.1:9093", description="where other brokers connect")
    replication_advertise: str | None = Field(
        None, description="what other brokers are told to connect to, if not the listen address"
    )
    default_replication: int = Field(
        2, ge=1, le=3, description="replicas of topics made without a number, in a cluster"
    )
    suspicion_ms: int = Field(
        300, ge=50, description="silence after which a broker counts as dead: its backups take over"
    )
    lease_seconds: float = Field(5.0, ge=2, description="a broker out of touch with etcd is seen after this")
    log_level: str = Field("info", description="debug, info, warning or error")
    log_json: bool = Field(False, description="log lines as JSON")

    @field_validator(
        "listen",
        "http",
        "advertise",
        "external_listen",
        "external_advertise",
        "replication_listen",
        "replication_advertise",
    )
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        host, separator, port = value.rpartition(":")
        if not separator or not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"{value!r} is not HOST:PORT")
        return value

    @field_validator("cluster")
    @classmethod
    def _are_endpoints(cls, value: str | None) -> str | None:
        if value:
            from penstock.cluster.etcd import endpoints_of  # not for everybody who only wants settings

            endpoints_of(value)
        return value

    @field_validator("log_level")
    @classmethod
    def _is_level(cls, value: str) -> str:
        if value.lower() not in ("debug", "info", "warning", "error"):
            raise ValueError("must be debug, info, warning or error")
        return value.lower()

    @field_validator("topic_defaults", mode="before")
    @classmethod
    def _are_topic_configs(cls, value: object) -> object:
        if not isinstance(value, dict) or not value:
            return value
        from penstock.log.config import LogConfig  # not for everybody who only wants settings
        from penstock.wire.errors import KafkaError

        texts = {
            name: each if isinstance(each, str) else json.dumps(each)  # TOML has numbers and booleans
            for name, each in value.items()
        }
        try:
            LogConfig.parse(texts)
        except KafkaError as error:
            raise ValueError(str(error)) from None
        return texts

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # `load` merges the sources itself, so that it can tell them apart


def _parse_pairs(variable: str, text: str) -> dict[str, str]:
    pairs = [part.strip() for part in text.split(",") if part.strip()]
    for pair in pairs:
        if "=" not in pair:
            raise SettingsError(f"{variable}: {pair!r} is not name=value")
    return dict(pair.split("=", 1) for pair in pairs)


class SettingsError(Exception):
    """A setting that can't be used, told as `where: what`."""


def load(
    options: Mapping[str, Any], environment: Mapping[str, str], file: Path | None
) -> tuple[Settings, dict[str, str]]:
    """The settings in force and where each comes from."""
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    if file is not None:
        try:
            found = tomllib.loads(file.read_text())
        except OSError as error:
            raise SettingsError(f"{file}: {error.strerror}") from None
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{file}: {error}") from None
        for key, value in found.items():
            name = key.replace("-", "_")
            values[name], sources[name] = value, str(file)
    for name in Settings.model_fields:
        variable = f"PENSTOCK_{name.upper()}"
        if variable in environment:
            text: Any = environment[variable]
            if name == "topic_defaults":
                text = _parse_pairs(variable, text)
            values[name], sources[name] = text, variable
    for name, value in options.items():
        if value is not None:
            values[name], sources[name] = value, f"--{name.replace('_', '-')}"
    try:
        settings = Settings(**values)
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            name = str(problem["loc"][0]) if problem["loc"] else "settings"
            where = sources.get(name, name)
            if file is not None and where == str(file):
                where = f"{where}: {name}"
            if problem["type"] == "extra_forbidden":
                problems.append(f"{where}: there is no such setting; `penstock config` lists them")
            else:
                problems.append(f"{where}: {problem['msg'].removeprefix('Value error, ')}")
        raise SettingsError("; ".join(problems)) from None
    return settings, {name: sources.get(name, "default") for name in Settings.model_fields}
