"""The paper's Figure 5: consumers that iterate, count and filter; 8 partitions.

They saw push ahead of pull with few partitions and small chunks, less with large ones.
"""

from __future__ import annotations

from penstock.bench.colocation import Colocation, parameters, scaled


class Subject(Colocation):
    about = "the paper's Figure 5: consumers that filter, 8 partitions"
    parameters = parameters(
        query="filter",
        chunk="2KiB,16KiB,128KiB",
        quick_chunk="16KiB",
        clients=scaled("4,8"),
        quick_clients="2",
    )
    in_quick_run = False
