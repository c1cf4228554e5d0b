"""The paper's Figure 9: word count and windowed word count over text in records of 2 KiB.

They saw no difference between push and pull: the words take all the CPU. The text is made up, with words
as frequent as Zipf's law says, or a file's (--text). A window is 5 seconds and slides by 1. Producers keep
to a rate that is more than Spark can count, and less than would push the uncounted out of memory. The native
client counts in plain Python.
"""

from __future__ import annotations

from penstock.bench.colocation import Colocation, parameters
from penstock.bench.experiment import Parameter, Plot


class Subject(Colocation):
    about = "the paper's Figure 9: word count, windowed word count over text"
    parameters = (
        *parameters(
            query="word-count,windowed-word-count",
            quick_query="word-count",
            chunk="32KiB",
            clients="2",
            record="2048",
            rate="20000",
            batch="8MB",
        ),
        Parameter("text", "", "A file with words; without it they are made up."),
    )
    text = True
    seconds = 6.0
    in_quick_run = False
    repeat = 2  # a JVM still gets faster while it counts: each is first once
    plots = (Plot(("producers_records_per_second", "consumers_records_per_second")),)
