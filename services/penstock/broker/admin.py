"""Administration: topics, partitions, configs, deleting records, producer ids, log directories."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from typing import Any, Final

from penstock.broker.context import BrokerContext
from penstock.broker.topics import TopicKeeper
from penstock.cluster.topics import INTERNAL
from penstock.log.config import TOPIC_CONFIGS, ConfigType
from penstock.wire.errors import ErrorCode, KafkaError
from penstock.wire.messages import Tree

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
_DYNAMIC_TOPIC: Final = 1
_STATIC_BROKER: Final = 4
_DEFAULT: Final = 5
_SET, _DELETE, _APPEND, _SUBTRACT = range(4)


class AdminHandlers:
    def __init__(self, context: BrokerContext, keeper: TopicKeeper, broker_configs: dict[str, str]) -> None:
        self._context = context
        self._keeper = keeper
        self._broker_configs = broker_configs

    async def create_topics(self, request: Any, version: int) -> Tree:
        names = [str(topic.name) for topic in request.topics]
        return {
            "topics": [
                await self._create(topic, request.validate_only, names.count(str(topic.name)) > 1)
                for topic in request.topics
            ]
        }

    async def _create(self, wanted: Any, validate_only: bool, repeated: bool) -> Tree:
        name = str(wanted.name)
        try:
            if repeated:
                raise KafkaError(ErrorCode.invalid_request, f"topic {name} is named twice in one request")
            count = (
                wanted.num_partitions if wanted.num_partitions != -1 else self._context.defaults.partitions
            )
            topic = await self._keeper.create(
                name,
                count,
                {entry.name: entry.value for entry in wanted.configs if entry.value is not None},
                self._context.defaults.replication
                if wanted.replication_factor == -1
                else wanted.replication_factor,
                {entry.partition_index: list(entry.broker_ids) for entry in wanted.assignments},
                validate_only=validate_only,
            )
        except KafkaError as error:
            return {"name": name, "error_code": error.code, "error_message": error.message}
        return {
            "name": name,
            "topic_id": topic.topic_id,
            "error_code": ErrorCode.none,
            "num_partitions": len(topic.partitions),
            "replication_factor": len(topic.partitions[0].replicas),
            "configs": [
                {
                    "name": entry["name"],
                    "value": entry["value"],
                    "read_only": False,
                    "config_source": entry["config_source"],
                    "is_sensitive": False,
                }
                for entry in self._topic_configs(topic.configs, None)
            ],
        }

    async def delete_topics(self, request: Any, version: int) -> Tree:
        responses: list[Tree] = []
        if version >= 6:
            for state in request.topics:
                name = str(state.name) if state.name is not None else None
                if name is None and state.topic_id is not None:
                    found = self._context.registry.by_id.get(state.topic_id.bytes)
                    if found is None:
                        responses.append(
                            {
                                "topic_id": state.topic_id,
                                "name": None,
                                "error_code": ErrorCode.unknown_topic_id,
                            }
                        )
                        continue
                    name = found.name
                responses.append(await self._delete(name or ""))
        else:
            responses = [await self._delete(str(name)) for name in request.topic_names]
        return {"responses": responses}

    async def _delete(self, name: str) -> Tree:
        try:
            if name in INTERNAL:
                raise KafkaError(ErrorCode.invalid_request, f"{name} is internal")
            topic = await self._keeper.delete(name)
            return {"name": name, "topic_id": topic.topic_id, "error_code": ErrorCode.none}
        except KafkaError as error:
            return {"name": name, "error_code": error.code, "error_message": error.message}

    async def create_partitions(self, request: Any, version: int) -> Tree:
        results = []
        for wanted in request.topics:
            name = str(wanted.name)
            try:
                await self._keeper.add_partitions(
                    name,
                    wanted.count,
                    [list(entry.broker_ids) for entry in wanted.assignments or ()],
                    validate_only=request.validate_only,
                )
                results.append({"name": name, "error_code": ErrorCode.none, "error_message": None})
            except KafkaError as error:
                results.append({"name": name, "error_code": error.code, "error_message": error.message})
        return {"results": results}

    async def delete_records(self, request: Any, version: int) -> Tree:
        topics = []
        for wanted in request.topics:
            partitions = []
            for partition in wanted.partitions:
                index = partition.partition_index
                try:
                    log = self._context.catalog.find(str(wanted.name), index)
                    if log.config.compact and not log.config.delete:
                        raise KafkaError(ErrorCode.policy_violation, "records of a compacted topic")
                    offset = log.high_watermark if partition.offset == -1 else partition.offset
                    if not 0 <= offset <= log.high_watermark:
                        raise KafkaError(ErrorCode.offset_out_of_range)
                    term = log.term
                    await self._context.store.delete_records(log, offset)
                    if self._context.cluster is not None:
                        await self._context.cluster.replicator.told(log, term)
                    partitions.append(
                        {
                            "partition_index": index,
                            "low_watermark": log.log_start,
                            "error_code": ErrorCode.none,
                        }
                    )
                except KafkaError as error:
                    partitions.append(
                        {"partition_index": index, "low_watermark": -1, "error_code": error.code}
                    )
            topics.append({"name": wanted.name, "partitions": partitions})
        return {"topics": topics}

    async def init_producer_id(self, request: Any, version: int) -> Tree:
        if request.transactional_id is not None:
            return {
                "error_code": ErrorCode.transactional_id_authorization_failed,
                "producer_id": -1,
                "producer_epoch": -1,
            }
        try:
            producer_id = await self._context.registry.next_producer_id()
        except KafkaError as error:
            return {"error_code": error.code, "producer_id": -1, "producer_epoch": -1}
        return {"error_code": ErrorCode.none, "producer_id": producer_id, "producer_epoch": 0}

    # Configs

    def describe_configs(self, request: Any, version: int) -> Tree:
        results = []
        for resource in request.resources:
            keys = resource.configuration_keys
            try:
                configs = list(self._configs_of(resource.resource_type, resource.resource_name, keys))
                if not getattr(request, "include_documentation", False):
                    configs = [{**config, "documentation": None} for config in configs]
                if not request.include_synonyms:
                    configs = [{**config, "synonyms": []} for config in configs]
                results.append({**_resource(resource), "error_code": ErrorCode.none, "configs": configs})
            except KafkaError as error:
                results.append(
                    {
                        **_resource(resource),
                        "error_code": error.code,
                        "error_message": error.message,
                        "configs": [],
                    }
                )
        return {"results": results}

    def _configs_of(self, kind: int, name: str, keys: Iterable[str] | None) -> Iterable[Tree]:
        if kind == TOPIC_RESOURCE:
            return self._topic_configs(self._context.registry.get(name).configs, keys)
        if kind == BROKER_RESOURCE:
            if name not in ("", str(self._context.broker_id)):
                raise KafkaError(
                    ErrorCode.invalid_request, f"this is broker {self._context.broker_id}, not {name}"
                )
            wanted = None if keys is None else set(keys)
            return [
                {
                    "name": key,
                    "value": value,
                    "read_only": True,
                    "config_source": _STATIC_BROKER,
                    "is_sensitive": False,
                    "config_type": ConfigType.STRING.value,
                    "synonyms": [],
                }
                for key, value in self._broker_configs.items()
                if wanted is None or key in wanted
            ]
        raise KafkaError(ErrorCode.invalid_request, f"no configs for resources of type {kind}")

    def _topic_configs(self, overrides: Any, keys: Iterable[str] | None) -> Iterable[dict[str, Any]]:
        wanted = None if keys is None else set(keys)
        defaults = self._context.registry.defaults
        for key in TOPIC_CONFIGS.values():
            if wanted is not None and key.name not in wanted:
                continue
            default = defaults.get(key.name, key.default)
            value = overrides.get(key.name, default)
            synonyms = [{"name": key.name, "value": default, "source": _DEFAULT}]
            if key.name in overrides:
                synonyms.insert(0, {"name": key.name, "value": value, "source": _DYNAMIC_TOPIC})
            yield {
                "name": key.name,
                "value": value,
                "read_only": False,
                "is_default": key.name not in overrides,
                "config_source": _DYNAMIC_TOPIC if key.name in overrides else _DEFAULT,
                "is_sensitive": False,
                "config_type": key.type.value,
                "documentation": key.doc,
                "synonyms": synonyms,
            }

    async def alter_configs(self, request: Any, version: int) -> Tree:
        responses: list[Tree] = []
        for resource in request.resources:
            configs = {entry.name: entry.value for entry in resource.configs if entry.value is not None}
            responses.append(await self._alter(resource, configs, request.validate_only))
        return {"responses": responses}

    async def incremental_alter_configs(self, request: Any, version: int) -> Tree:
        responses: list[Tree] = []
        for resource in request.resources:
            topic = self._context.registry.by_name.get(resource.resource_name)
            configs = dict(topic.configs) if topic else {}
            try:
                _check_is_topic(resource)
                for entry in resource.configs:
                    _apply(configs, entry.name, entry.config_operation, entry.value)
            except KafkaError as error:
                responses.append(
                    {**_resource(resource), "error_code": error.code, "error_message": error.message}
                )
                continue
            responses.append(await self._alter(resource, configs, request.validate_only))
        return {"responses": responses}

    async def _alter(self, resource: Any, configs: dict[str, str], validate_only: bool) -> Tree:
        try:
            _check_is_topic(resource)
            await self._keeper.configure(resource.resource_name, configs, validate_only=validate_only)
            return {**_resource(resource), "error_code": ErrorCode.none, "error_message": None}
        except KafkaError as error:
            return {**_resource(resource), "error_code": error.code, "error_message": error.message}

    # Log directories

    def describe_log_dirs(self, request: Any, version: int) -> Tree:
        wanted = None
        if request.topics is not None:
            wanted = {str(entry.topic): set(entry.partitions) for entry in request.topics}
        topics = []
        for served in self._context.catalog:
            name = served.topic.name
            if wanted is not None and name not in wanted:
                continue
            topics.append(
                {
                    "name": name,
                    "partitions": [
                        {
                            "partition_index": log.partition,
                            "partition_size": log.size,
                            "offset_lag": 0,
                            "is_future_key": False,
                        }
                        for log in served.logs
                        if wanted is None or not wanted[name] or log.partition in wanted[name]
                    ],
                }
            )
        disk = shutil.disk_usage(self._context.store.disk_directory)
        return {
            "error_code": ErrorCode.none,
            "results": [
                {
                    "error_code": ErrorCode.none,
                    "log_dir": str(self._context.store.disk_directory),
                    "topics": topics,
                    "total_bytes": disk.total,
                    "usable_bytes": disk.free,
                }
            ],
        }


def _resource(resource: Any) -> dict[str, Any]:
    return {"resource_type": resource.resource_type, "resource_name": resource.resource_name}


def _check_is_topic(resource: Any) -> None:
    if resource.resource_type != TOPIC_RESOURCE:
        raise KafkaError(
            ErrorCode.invalid_request,
            "only topic configs can be altered; a broker's are its settings, read at start",
        )


def _apply(configs: dict[str, str], name: str, operation: int, value: str | None) -> None:
    key = TOPIC_CONFIGS.get(name)
    if key is None:
        raise KafkaError(ErrorCode.invalid_config, f"unknown topic config {name}")
    if operation == _DELETE:
        configs.pop(name, None)
        return
    if value is None:
        raise KafkaError(ErrorCode.invalid_config, f"{name} has no value")
    if operation == _SET:
        configs[name] = value
        return
    if operation not in (_APPEND, _SUBTRACT) or key.type is not ConfigType.LIST:
        raise KafkaError(ErrorCode.invalid_config, f"{name} takes no operation {operation}")
    parts = [part for part in configs.get(name, key.default).split(",") if part]
    change = [part for part in value.split(",") if part]
    if operation == _APPEND:
        parts += [part for part in change if part not in parts]
    else:
        parts = [part for part in parts if part not in change]
    configs[name] = ",".join(parts)
