"""What the JSON views answer with: one model per answer, sizes in bytes, moments in seconds since 1970."""

from __future__ import annotations

from pydantic import BaseModel, Field


class Alive(BaseModel):
    status: str = "alive"


class Readiness(BaseModel):
    ready: bool
    reason: str | None = Field(None, description="why not, when it is not")


class Problem(BaseModel):
    detail: str


class MemoryStatus(BaseModel):
    """The pool of shared memory."""

    directory: str
    budget: int
    in_use: int = Field(description="held by logs, by readers, or on its way back")
    free: int = Field(description="warm, to be handed out again")
    retiring: int = Field(description="given up by its log, waiting for a last look at the readers")
    detached: int = Field(description="given up by its log, kept alive for a reader that has it pinned")
    evictions: int
    taken_from_readers: int = Field(description="times a reader's pinned memory was needed for appends")


class DiskStatus(BaseModel):
    directory: str
    log_bytes: int
    free: int
    unflushed: int = Field(description="appended and not handed to the file system yet")
    write_behind_lag_seconds: float
    failure: str | None = Field(description="what the disk said when it last refused; null while all is well")


class BrokerStatus(BaseModel):
    broker_id: int
    cluster_id: str
    version: str
    pid: int
    ready: bool
    reason: str | None
    kafka: str
    http: str
    started_at: float
    uptime_seconds: float
    incarnation: int
    topics: int
    partitions: int
    offline_partitions: int
    connections: int
    waiting_fetches: int
    groups: int
    readers: int
    records_in: int
    bytes_in: int
    records_out: int = Field(description="by pull; /v1/readers has what goes by push")
    bytes_out: int
    memory: MemoryStatus
    disk: DiskStatus


class TopicSummary(BaseModel):
    topic: str
    topic_id: str
    internal: bool
    partition_count: int
    offline_partitions: int
    records_in: int
    bytes_in: int
    records_out: int
    bytes_out: int
    log_bytes: int
    hot_bytes: int = Field(description="shared memory that its segments take")
    unflushed: int


class PartitionStatus(BaseModel):
    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    log_start: int
    high_watermark: int
    log_end: int
    segments: int
    log_bytes: int
    hot_bytes: int
    unflushed: int
    damage: str | None = Field(description="why it can't be served, and what to do")


class TopicDetail(TopicSummary):
    configs: dict[str, str] = Field(description="what differs from the defaults")
    partitions: list[PartitionStatus]


class GroupSummary(BaseModel):
    group: str
    state: str
    protocol: str
    member_count: int
    lag: int = Field(description="records behind, all partitions together")
    max_lag: int = Field(description="records behind, the worst partition")


class MemberStatus(BaseModel):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: dict[str, list[int]]


class GroupOffset(BaseModel):
    topic: str
    partition: int
    committed: int
    high_watermark: int | None = Field(description="null when the partition is not here")
    lag: int | None


class GroupDetail(GroupSummary):
    generation: int
    members: list[MemberStatus]
    offsets: list[GroupOffset]


class ConnectionStatus(BaseModel):
    peer: str
    client_id: str
    software: str
    since: float
    requests: int
    bytes_in: int
    bytes_out: int
    in_flight: int = Field(description="requests that wait for their answer to be made or taken")


class CursorStatus(BaseModel):
    topic: str | None = Field(description="null when the topic is gone")
    partition: int
    mode: str = Field(description="push: out of shared memory; pull: by fetch requests")
    pinned_segment: int | None
    finished: int = Field(description="every record below this offset is done with")
    high_watermark: int | None
    lag: int | None
    push_records: int
    push_bytes: int
    pull_records: int
    pull_bytes: int


class ReaderStatus(BaseModel):
    session: str
    label: str
    lag: int
    max_lag: int
    cursors: list[CursorStatus]


class ClusterBroker(BaseModel):
    broker_id: int
    kafka: str
    replication: str
    http: str
    rack: str | None
    alive: bool = Field(description="whether its lease in etcd lives")
    drained: bool = Field(description="an operator drained it: it gets no replicas until it starts again")
    leads: int
    replicas: int


class BackupStatus(BaseModel):
    broker_id: int
    state: str = Field(description="streaming, catching up, or detached")
    lag: int = Field(description="records that it has not acknowledged")


class OwnReplica(BaseModel):
    storage: int
    last_epoch: int
    log_start: int
    log_end: int
    high_watermark: int


class PlacedPartition(BaseModel):
    topic: str
    partition: int
    leader: int
    epoch: int
    replicas: list[int]
    in_sync: list[int]
    wanted: int = Field(description="how many replicas its topic shall have")
    reason: str = Field(description="of the last change of leader or in-sync set")


class ReplicatedPartition(PlacedPartition):
    backups: list[BackupStatus] | None = Field(description="known to the leader only; null elsewhere")
    own: OwnReplica | None = Field(description="what the broker that answers has of it")


class ClusterPartition(PlacedPartition):
    lags: dict[int, int] = Field(description="records that each backup has not acknowledged, by broker")


class ElectionStatus(BaseModel):
    at: float
    partition: str
    epoch: int
    leader: int
    reason: str


class ClusterView(BaseModel):
    cluster_id: str
    told_by: int = Field(description="the broker that says all this")
    etcd_reachable: bool
    brokers: list[ClusterBroker]


class ClusterStatus(ClusterView):
    partitions: list[ReplicatedPartition]
    elections: list[ElectionStatus] = Field(description="won by this broker, the newest first")


class WholeCluster(ClusterView):
    partitions: list[ClusterPartition]
    elections: list[ElectionStatus] = Field(description="the last of every broker, the newest first")
    silent: list[int] = Field(description="brokers that live and did not answer: their part is not known")
