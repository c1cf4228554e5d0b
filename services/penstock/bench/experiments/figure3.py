"""The paper's Figure 3: ingestion only, by chunk size, number of producers and replication.

They saw throughput grow with the chunk size, more producers help, and a second replica cost a lot.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.bench.colocation import Colocation, Way, parameters, scaled
from penstock.bench.experiment import Plot


class Subject(Colocation):
    about = "the paper's Figure 3: ingestion by chunk size, producers and replication"
    parameters = parameters(
        chunk="1KiB,4KiB,16KiB,64KiB,128KiB",
        quick_chunk="4KiB,64KiB",
        clients=scaled("2,8", each=4),
        quick_clients="2",
        memory="1GiB",
        quick_memory="512MiB",
    )
    ways: ClassVar[dict[str, Way]] = {"replication 1": Way(None), "replication 2": Way(None, replication=2)}
    contenders = tuple(ways)
    baseline = "replication 1"
    plots = (Plot(("producers_records_per_second",), along="chunk", panels="clients"),)
