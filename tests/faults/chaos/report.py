"""What is left of a run for people: timeline, pauses and a plot, next to the history it was made from."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from chaos.checker import Verdict
from chaos.history import Event


@dataclass(frozen=True, slots=True)
class Played:
    """One round, in seconds since the load began."""

    round: int
    faults: str
    began: float
    healed: float
    well: float
    pause: float
    """The longest time without an acknowledgement on any partition."""


def pauses(times: Sequence[float], began: float, ended: float) -> float:
    """The longest time without an event that overlaps the time between."""
    within = [began, *(t for t in times if began <= t <= ended), ended]
    return max(b - a for a, b in itertools.pairwise(within))


def save(out: Path, settings: dict[str, object], verdict: Verdict, played: list[Played]) -> None:
    by_kind: dict[str, list[float]] = {}
    for each in played:
        by_kind.setdefault(each.faults.split(" broker")[0].split(" + ")[0], []).append(each.pause)
    found = {
        **settings,
        "rounds": len(played),
        "good": verdict.is_good,
        "acknowledged": verdict.acknowledged,
        "in_the_log": verdict.in_the_log,
        "read": verdict.read,
        "violations": dict(verdict.violations),
        "examples": verdict.examples,
        "longest_pause_by_first_fault": {
            kind: {"rounds": len(each), "median": round(median(each), 2), "max": round(max(each), 2)}
            for kind, each in sorted(by_kind.items())
        },
        "timeline": [asdict(each) for each in played],
    }
    (out / "verdict.json").write_text(json.dumps(found, indent=1))
    lines = [
        f"{p.began:8.1f} s  round {p.round:3d}  {p.faults:60s} healed {p.healed - p.began:5.1f} s"
        f"  well {p.well - p.began:5.1f} s  pause {p.pause:5.2f} s"
        for p in played
    ]
    (out / "timeline.txt").write_text("\n".join([*lines, "", str(verdict), ""]))


def plot(out: Path, history: Callable[[], Iterable[Event]], zero: float, played: list[Played]) -> Path | None:
    """Acknowledged and read records a second, with the faults; None without matplotlib."""
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("Agg")
    from matplotlib import pyplot

    rates: dict[str, Counter[float]] = {
        "acknowledged": Counter(),
        "read by pull": Counter(),
        "read by push": Counter(),
    }
    for event in history():
        second = int((event[1] - zero) * 2) / 2
        if event[0] == "acked":
            rates["acknowledged"][second] += 2
        elif event[0] == "read" and event[2] == "pull":
            rates["read by pull"][second] += 2 * len(event[6])
        elif event[0] == "read" and event[2].startswith("push"):
            rates["read by push"][second] += 2 * len(event[6])
    rows = max(1, min(40, round(len(played) / 8)))
    end = max((p.well for p in played), default=1.0) + 2
    figure, axes = pyplot.subplots(rows, 1, figsize=(16, 2.4 * rows), squeeze=False, layout="constrained")
    for row in range(rows):
        axis = axes[row][0]
        begin, stop = end * row / rows, end * (row + 1) / rows
        for name, counts in rates.items():
            seconds = [begin + at / 2 for at in range(int((stop - begin) * 2))]
            axis.plot(seconds, [counts[int(s * 2) / 2] for s in seconds], label=name, linewidth=0.8)
        for p in played:
            if begin <= p.began < stop:
                axis.axvspan(p.began, p.healed, color="tab:red", alpha=0.15, linewidth=0)
                axis.text(
                    p.began, axis.get_ylim()[1], f"{p.round} {p.faults}", fontsize=5, va="top", rotation=90
                )
        axis.set_xlim(begin, stop)
        axis.set_ylabel("records/s", fontsize=7)
        axis.tick_params(labelsize=6)
    axes[0][0].legend(fontsize=6, loc="lower left")
    axes[-1][0].set_xlabel("seconds", fontsize=7)
    path = out / "throughput.png"
    figure.savefig(path, dpi=90)
    return path
