"""The paper's Figure 8: small chunks, the consumers' eight times as large as the producers'.

They saw push equal or higher with fewer resources.
"""

from __future__ import annotations

from penstock.bench.colocation import Colocation, parameters, scaled


class Subject(Colocation):
    about = "the paper's Figure 8: small chunks, the consumers' eight times the producers'"
    parameters = parameters(
        query="filter",
        chunk="1KiB,2KiB,4KiB",
        quick_chunk="2KiB",
        clients=scaled("4,8"),
        quick_clients="2",
        fetch="8x",
    )
    in_quick_run = False
