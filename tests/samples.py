"""One valid request of every API, as a tree that fits all its versions (see `rawclient.request_bytes`)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from penstock.wire.apis import SUPPORTED, ApiKey
from rawclient import record_batch

KAFKA_APIS = [key for key in SUPPORTED if key is not ApiKey.SUBSCRIBE]
EVERY_VERSION = [
    (key, version) for key in KAFKA_APIS for version in range(SUPPORTED[key].low, SUPPORTED[key].high + 1)
]

_CONSUMER_PROTOCOL = b"\0\0\0\0\0\1\0\1t\0\0\0\0"


def sample(key: ApiKey, topic: str, topic_id: UUID, group: str = "sample-group") -> dict[str, Any]:
    place = {
        "partition": 0,
        "partition_index": 0,
        "index": 0,
        "current_leader_epoch": -1,
        "leader_epoch": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 1 << 20,
        "committed_offset": 0,
        "committed_metadata": "m",
        "timestamp": -1,
        "offset": 0,
        "records": record_batch([b"a", b"b"]),
    }
    by_topic = {"topic": topic, "name": topic, "topic_id": topic_id, "partitions": [place]}
    resource = {"resource_type": 2, "resource_name": topic}
    trees: dict[ApiKey, dict[str, Any]] = {
        ApiKey.PRODUCE: {
            "acks": -1,
            "timeout": 1000,
            "topic_data": [{**by_topic, "partition_data": [place]}],
        },
        ApiKey.FETCH: {
            "replica_id": -1,
            "max_wait": 10,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "session_epoch": -1,
            "topics": [by_topic],
        },
        ApiKey.LIST_OFFSETS: {"replica_id": -1, "timeout": 1000, "topics": [by_topic]},
        ApiKey.METADATA: {"topics": [{"name": topic, "topic_id": None}]},
        ApiKey.OFFSET_COMMIT: {
            "group_id": group,
            "generation_id": -1,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "retention_time_ms": -1,
            "topics": [by_topic],
        },
        ApiKey.OFFSET_FETCH: {
            "group_id": group,
            "topics": [{"name": topic, "partition_indexes": [0]}],
            "groups": [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}],
        },
        ApiKey.FIND_COORDINATOR: {"key": group, "key_type": 0, "coordinator_keys": [group]},
        ApiKey.JOIN_GROUP: {
            "group_id": f"{group}-join",
            "session_timeout": 6000,
            "rebalance_timeout": 6000,
            "member_id": "",
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": _CONSUMER_PROTOCOL}],
        },
        ApiKey.HEARTBEAT: {"group_id": group, "generation_id": 1, "member_id": "nobody"},
        ApiKey.LEAVE_GROUP: {
            "group_id": group,
            "member_id": "nobody",
            "members": [{"member_id": "nobody"}],
        },
        ApiKey.SYNC_GROUP: {
            "group_id": group,
            "generation_id": 1,
            "member_id": "nobody",
            "assignments": [{"member_id": "nobody", "assignment": b"x"}],
        },
        ApiKey.DESCRIBE_GROUPS: {"groups": [group]},
        ApiKey.LIST_GROUPS: {"states_filter": [], "types_filter": []},
        ApiKey.API_VERSIONS: {"client_software_name": "raw", "client_software_version": "1"},
        ApiKey.CREATE_TOPICS: {
            "timeout": 1000,
            "validate_only": True,
            "topics": [
                {
                    "name": f"{topic}-new",
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "configs": [{"name": "retention.ms", "value": "100000"}],
                }
            ],
        },
        ApiKey.DELETE_TOPICS: {
            "timeout": 1000,
            "topic_names": [f"{topic}-none"],
            "topics": [{"name": f"{topic}-none", "topic_id": None}],
        },
        ApiKey.DELETE_RECORDS: {"timeout": 1000, "topics": [by_topic]},
        ApiKey.INIT_PRODUCER_ID: {"transactional_id": None, "transaction_timeout": 1000},
        ApiKey.OFFSET_FOR_LEADER_EPOCH: {"replica_id": -1, "topics": [by_topic]},
        ApiKey.DESCRIBE_CONFIGS: {"resources": [{**resource, "configuration_keys": None}]},
        ApiKey.ALTER_CONFIGS: {
            "resources": [{**resource, "configs": [{"name": "retention.ms", "value": "100000000"}]}]
        },
        ApiKey.DESCRIBE_LOG_DIRS: {"topics": None},
        ApiKey.CREATE_PARTITIONS: {
            "topics": [{"name": topic, "count": 4, "assignments": None}],
            "timeout": 1000,
            "validate_only": True,
        },
        ApiKey.DELETE_GROUPS: {"groups_names": [f"{group}-none"]},
        ApiKey.INCREMENTAL_ALTER_CONFIGS: {
            "resources": [
                {
                    **resource,
                    "configs": [{"name": "retention.ms", "config_operation": 0, "value": "100000000"}],
                }
            ]
        },
        ApiKey.OFFSET_DELETE: {"group_id": group, "topics": [by_topic]},
        ApiKey.DESCRIBE_CLUSTER: {"endpoint_type": 1},
    }
    return trees[key]
