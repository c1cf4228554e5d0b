"""Record sizes: ingestion with records of 100 bytes to 1 MiB, ours and Apache Kafka's.

As `ingest`, with chunks of 64 KiB where a record fits, and of one record where it doesn't.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.bench.experiment import Better, Metric, Parameter, Plot, Variant
from penstock.bench.experiments import ingest
from penstock.bench.load import Load
from penstock.settings import parse_size

_ROOM: Final = 128
"""What a batch of one record takes besides its value, at most."""


class Subject(ingest.Subject):
    about = "ingestion by record size, 100 B to 1 MiB, against Apache Kafka"
    parameters = (
        Parameter("record", "100B,1KiB,100KiB,1MiB", "Record sizes.", quick="100B,1MiB"),
        Parameter("chunk", "64KiB", "Chunk size, as far as a record fits."),
        *(each for each in ingest.Subject.parameters if each.name in ("partitions", "producers")),
        Parameter("replication", "1", "Replicas of each chunk."),
        Parameter("memory", "1GiB", "Our broker's memory budget.", quick="256MiB"),
    )
    metrics = (
        Metric("megabytes_per_second", "MB/s", Better.MORE),
        Metric("records_per_second", "records/s", Better.MORE),
        Metric("cpu_us_per_request", "us", Better.LESS),
        Metric("latency_ms_p50", "ms", Better.LESS),
    )
    goals = ()
    plots = (Plot(("megabytes_per_second", "cpu_us_per_request"), along="record", logarithmic=True),)
    seconds = 3.0
    repeat = 2
    quick_repeat = 1
    in_quick_run = False

    def variants(self) -> Sequence[Variant]:
        return [{"record": record} for record in self.options.texts("record")]

    def _load_of(self, variant: Variant) -> Load:
        record = parse_size(variant["record"])
        chunk = max(parse_size(self.options.text("chunk")), record + _ROOM)
        return self._load(str(chunk))._replace(record=record)
