"""The paper's Figure 6: as Figure 5, with 4 partitions."""

from __future__ import annotations

from penstock.bench.colocation import parameters, scaled
from penstock.bench.experiments import figure5


class Subject(figure5.Subject):
    about = "the paper's Figure 6: consumers that filter, 4 partitions"
    parameters = parameters(
        query="filter",
        partitions="4",
        chunk="2KiB,16KiB,128KiB",
        quick_chunk="16KiB",
        clients=scaled("4,8"),
        quick_clients="2",
    )
