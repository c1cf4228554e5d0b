"""What the demo shows while it runs, and the table at its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean, median

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text


@dataclass(slots=True)
class ModeFigures:
    """What was measured while one mode ran: in one turn, or in all of them."""

    records_out: int = 0
    seconds: float = 0.0
    latencies_p50: list[float] = field(default_factory=list)
    """Of each micro-batch of a turn; of all turns, the middle of each."""
    latencies_p99: list[float] = field(default_factory=list)
    broker_cpu: float = 0.0
    fetches: int = 0
    replay: float = 0.0

    def add(self, turn: ModeFigures) -> None:
        """Another turn of the same mode. Turns weigh the same: the faster one has more micro-batches."""
        self.records_out += turn.records_out
        self.seconds += turn.seconds
        self.latencies_p50 += [median(turn.latencies_p50)] if turn.latencies_p50 else []
        self.latencies_p99 += [median(turn.latencies_p99)] if turn.latencies_p99 else []
        self.broker_cpu += turn.broker_cpu
        self.fetches += turn.fetches

    def row(self) -> list[str]:
        return [
            _rate(self.records_out / self.seconds if self.seconds else 0),
            f"{_mean(self.latencies_p50):.0f} ms",
            f"{_mean(self.latencies_p99):.0f} ms",
            f"{100 * self.broker_cpu / self.seconds if self.seconds else 0:.0f} %",
            f"{self.fetches}",
            _rate(self.replay),
        ]


@dataclass(slots=True)
class Live:
    """The current figures."""

    setting: str = ""
    step: str = ""
    rate_in: float = 0.0
    rate_out: float = 0.0
    lag: int = 0
    p50: float = 0.0
    p99: float = 0.0
    broker_cpu: float = 0.0
    records: int = 0
    modes: dict[str, ModeFigures] = field(default_factory=dict)

    def __rich__(self) -> RenderableType:
        table = Table.grid(padding=(0, 3))
        for _ in range(6):
            table.add_column(justify="right")
        table.add_row("in", "out", "lag", "latency p50", "p99", "broker CPU", style="dim")
        table.add_row(
            _rate(self.rate_in),
            _rate(self.rate_out),
            f"{self.lag:,}",
            f"{self.p50:.0f} ms",
            f"{self.p99:.0f} ms",
            f"{self.broker_cpu:.0f} %",
            style="bold",
        )
        return Panel(
            Group(
                Text(self.setting, style="dim"),
                Text(self.step, style="cyan"),
                Text(""),
                table,
                Text(f"\n{self.records:,} records read"),
            ),
            title="penstock demo",
            width=86,
        )


def comparison(modes: dict[str, ModeFigures]) -> Table:
    table = Table(title="push against pull, the same job on the same topic")
    for name in ("", "streamed", "latency p50", "p99", "broker CPU", "fetches", "read again at"):
        table.add_column(name, justify="left" if not name else "right", no_wrap=True)
    for name, figures in modes.items():
        table.add_row(name, *figures.row())
    return table


def _rate(per_second: float) -> str:
    if per_second >= 1e6:
        return f"{per_second / 1e6:.1f} M rec/s"
    return f"{per_second / 1e3:.0f} k rec/s"


def _mean(values: list[float]) -> float:
    return fmean(values) if values else 0.0
