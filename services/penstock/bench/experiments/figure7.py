"""The paper's Figure 7: the broker short of CPU and with a replica; 4 producers, 4 consumers, 8 partitions.

They saw push up to twice as fast as pull with the same engine, and a native pull client keep up best. Here
leader and backup share one CPU.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.bench.colocation import Colocation, Way, parameters


class Subject(Colocation):
    about = "the paper's Figure 7: a broker short of CPU, replication 2, 4 producers and 4 consumers"
    parameters = parameters(
        query="filter",
        clients="4",
        chunk="4KiB,16KiB,64KiB,128KiB",
        quick_chunk="16KiB",
        memory="3GiB",
    )
    ways: ClassVar[dict[str, Way]] = {
        "push": Way("push", replication=2),
        "pull": Way("pull", replication=2),
        "native pull": Way("native", replication=2),
    }
    in_quick_run = False
