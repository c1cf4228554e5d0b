"""The paper's Figure 4: producers and consumers that iterate and count, by chunk size and their number.

They saw producers slow down when consumers compete, push slightly ahead of pull with fewer threads, and
pull ahead where one push thread was the limit. Their consumers' chunk is 128 KiB; a task of Spark asks for
one partition at a time and reads far less so (--fetch 128KiB), so ours is what the connector asks for.
"""

from __future__ import annotations

from penstock.bench.colocation import Colocation, parameters, scaled


class Subject(Colocation):
    about = "the paper's Figure 4: producers against consumers that iterate, by their number"
    parameters = parameters(
        chunk="1KiB,16KiB,128KiB", quick_chunk="16KiB", clients=scaled("1,2,4,8", each=4), quick_clients="2"
    )
    in_quick_run = False
