"""Pictures of a result, in one style, readable in a README: PNG files beside its JSON.

Called after every run and by `penstock bench plot`. What is drawn is the experiment's to say (`Plot`); an
experiment that says nothing gets bars of each metric. A contender has the same colour in every picture.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.bench.experiment import Plot, Variant
from penstock.bench.results import Result, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_STYLE: Final[Any] = {
    "figure.dpi": 110,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "legend.frameon": False,
    "savefig.bbox": "tight",
}
_COLOURS: Final = {
    "push": "#0072b2",
    "penstock": "#0072b2",
    "batches": "#0072b2",
    "records": "#56b4e9",
    "micro-batch": "#56b4e9",
    "pull": "#e69f00",
    "raw": "#e69f00",
    "native pull": "#009e73",
    "aiokafka": "#009e73",
    "librdkafka": "#44aa99",
    "no consumers": "#888888",
    "idle": "#888888",
    "kafka": "#d55e00",
    "kafka raw": "#d55e00",
    "kafka tuned": "#cc79a7",
    "kafka alone": "#bbbbbb",
    "kafka native pull": "#661100",
    "kafka micro-batch": "#882255",
    "kafka aiokafka": "#cc79a7",
    "kafka librdkafka": "#882255",
}
"""So that a contender, and what is like it elsewhere, has its colour in every picture."""
_OTHERS: Final = ("#0072b2", "#d55e00", "#e69f00", "#009e73", "#cc79a7", "#332288", "#999933", "#661100")
"""By their order in an experiment, for contenders that only it has."""
_MARKS: Final = "os^Dv<>P"
_PANEL: Final = (3.1, 2.3)
_HEADROOM: Final = 1.05
_WIDTH: Final = 3 * _PANEL[0]
"""Inches: what a page shows without making it smaller."""
_STEPS: Final = (1, 2, 5)
_MANY: Final = 100
_TAILS: Final = {0.5: "50 %", 0.1: "10 %", 0.01: "1 % (p99)", 1e-3: "0.1 % (p99.9)", 1e-4: "0.01 % (p99.99)"}
_AT: Final = "_at_"
_T = TypeVar("_T")


class CannotPlot(Exception):
    """There is nothing to draw with, or nothing to draw; the text says which."""


def draw(
    result: Result, plots: Sequence[Plot], path: Path, title: str = "", order: Sequence[str] = ()
) -> list[Path]:
    """Write the pictures of a result that lies at `path`; where they are. `order` is that of contenders."""
    try:
        import matplotlib
    except ImportError:
        raise CannotPlot("matplotlib is not installed: pip install 'penstock[bench]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for plot in plots or [Plot(tuple(metric.name for metric in result.metrics))]:
        with matplotlib.rc_context(_STYLE):
            figure = figure_of(result, plot, title, order)
            if figure is None:
                continue
            target = path.with_suffix("").with_name(path.stem + (f"-{plot.name}" if plot.name else ""))
            figure.savefig(target.with_suffix(".png"))
            pyplot.close(figure)
            written.append(target.with_suffix(".png"))
    if not written:
        raise CannotPlot("the result has nothing to draw")
    return written


def figure_of(result: Result, plot: Plot, title: str = "", order: Sequence[str] = ()) -> Figure | None:
    """One picture, not yet written; None if the result has nothing for it."""
    return _Drawing(result, plot, title, order).figure()


class _Point(NamedTuple):
    """Samples of one variant: where it stands, their median, lowest and highest."""

    x: float
    y: float
    low: float
    high: float


class _Drawing:
    def __init__(self, result: Result, plot: Plot, title: str, order: Sequence[str]) -> None:
        self._result = result
        self._plot = plot
        self._units = {metric.name: metric.unit for metric in result.metrics}
        self._variants = [
            variant
            for variant in _distinct(sample.variant for sample in result.samples)
            if _has_all(variant, plot.within)
        ]
        here = _distinct(sample.contender for sample in result.samples)
        self._contenders = [each for each in order if each in here]
        self._contenders += [each for each in here if each not in order]
        # Those of the whole experiment, so that a run with some of them has the same colours.
        everyone = _distinct((*order, *here))
        taken = {_COLOURS[each] for each in everyone if each in _COLOURS}
        others = cycle([each for each in _OTHERS if each not in taken])
        self._colours = {each: _COLOURS.get(each) or next(others) for each in everyone}
        same = self._same()
        self._differing = [_without(variant, same) for variant in self._variants]
        self._title = ", ".join(
            (plot.title or title or result.experiment, *(f"{name} {text}" for name, text in same.items()))
        )

    def _same(self) -> dict[str, str]:
        """Labels that all variants here have alike; not those that have an axis or panels of their own."""
        elsewhere = (self._plot.along, self._plot.panels)
        first = self._variants[0] if self._variants else {}
        return {
            name: text
            for name, text in first.items()
            if name not in elsewhere and all(variant.get(name) == text for variant in self._variants)
        }

    def figure(self) -> Figure | None:
        from matplotlib import pyplot

        rows = [name for name in self._plot.metrics if self._has(name)]
        columns = self._columns()
        if not rows or not columns:
            return None
        if self._plot.along is None and not self._plot.distribution:
            return self._bars(rows)
        figure, grid = pyplot.subplots(
            len(rows),
            len(columns),
            squeeze=False,
            sharex="all" if self._plot.distribution else "none",
            sharey="row",
            figsize=(min(_PANEL[0] * len(columns), _WIDTH), _PANEL[1] * len(rows)),
        )
        for row, metric in enumerate(rows):
            for column, fixed in enumerate(columns):
                axes = grid[row][column]
                self._panel(axes, metric, fixed)
                if row == 0:
                    axes.set_title(label(fixed) if fixed else "")
                if column == 0:
                    axes.set_ylabel(self._axis(metric))
            if not self._plot.distribution:
                self._scale(grid[row])
        if self._plot.distribution:
            self._scale_distributions([axes for row in grid for axes in row])
        return self._finish(figure)

    def _bars(self, metrics: Sequence[str]) -> Figure:
        """A panel for each metric: variants along the axis, a bar for each contender. On a logarithmic axis
        a dot: a bar's length means nothing there."""
        from matplotlib import pyplot

        wide = min(_WIDTH, max(_PANEL[0], 0.35 * len(self._variants) * len(self._contenders)))
        columns = min(len(metrics), int(_WIDTH / wide))
        rows = -(-len(metrics) // columns)
        figure, grid = pyplot.subplots(
            rows, columns, squeeze=False, figsize=(wide * columns, _PANEL[1] * 1.2 * rows)
        )
        width = 0.8 / len(self._contenders)
        panels = [axes for row in grid for axes in row]
        for axes in panels[len(metrics) :]:
            axes.remove()
        for axes, metric in zip(panels, metrics, strict=False):
            for index, contender in enumerate(self._contenders):
                places = [(at + index * width, variant) for at, variant in enumerate(self._variants)]
                points = self._points(metric, contender, places)
                if not points:
                    continue
                x, y = [point.x for point in points], [point.y for point in points]
                colour = self._colours[contender]
                if self._plot.logarithmic:
                    axes.plot(x, y, "o", color=colour, label=contender)
                else:
                    axes.bar(x, y, width * 0.92, color=colour, label=contender)
                _whiskers(axes, points, colour if self._plot.logarithmic else "#333333")
            axes.set_xticks([at + 0.4 - width / 2 for at in range(len(self._variants))])
            texts = ["\n".join(f"{name} {text}" for name, text in each.items()) for each in self._differing]
            axes.set_xticklabels(texts, fontsize=7)
            axes.set_title(self._axis(metric))
            axes.grid(axis="x", visible=False)
            self._scale([axes])
        return self._finish(figure)

    def _panel(self, axes: Axes, metric: str, fixed: Variant) -> None:
        along = None if self._plot.distribution else self._plot.along
        within = [variant for variant in self._variants if _has_all(variant, fixed)]
        elsewhere = (along or "", *fixed, *self._plot.within)
        lines = _distinct(_without(variant, elsewhere) for variant in within)
        ticks = _distinct(variant[along] for variant in within) if along else []
        for contender in self._contenders:
            for mark, rest in zip(cycle(_MARKS), lines):  # marks begin again
                own = [variant for variant in within if _has_all(variant, rest)]
                points = (
                    self._tail(metric, contender, own)
                    if along is None
                    else self._points(metric, contender, [(ticks.index(v[along]), v) for v in own])
                )
                if not points:
                    continue
                colour = self._colours[contender]
                axes.plot(
                    [point.x for point in points],
                    [point.y for point in points],
                    color=colour,
                    label=contender + (f", {label(rest)}" if len(lines) > 1 else ""),
                    linestyle="-" if rest == lines[0] else "--",
                    marker=None if along is None else mark,
                )
                _whiskers(axes, points, colour)
        if along is None:
            axes.set_xlabel(metric.replace("_ms", " (ms)").replace("_", " "))
        else:
            axes.set_xlabel(along)
            axes.set_xticks(range(len(ticks)), ticks)
            axes.set_xlim(-0.3, len(ticks) - 0.7)

    def _tail(self, metric: str, contender: str, variants: Sequence[Variant]) -> list[_Point]:
        """At each value, the share of the records that had more than that; medians of the samples."""
        start = metric + _AT
        found: dict[float, list[float]] = {}
        for sample in self._result.samples:
            if sample.contender == contender and sample.variant in variants:
                for name, value in sample.figures.items():
                    if name.startswith(start):
                        found.setdefault(float(name.removeprefix(start)), []).append(value)
        tails = [(median(values), 1 - share) for share, values in sorted(found.items()) if share < 1]
        return [_Point(x, y, y, y) for x, y in tails]

    def _points(self, metric: str, contender: str, places: Iterable[tuple[float, Variant]]) -> list[_Point]:
        values = self._result.by_key(metric)
        found = ((x, values.get((label(variant), contender))) for x, variant in places)
        return [_Point(x, median(each), min(each), max(each)) for x, each in found if each]

    def _has(self, metric: str) -> bool:
        figures = (
            name
            for sample in self._result.samples
            if sample.variant in self._variants
            for name in sample.figures
        )
        if self._plot.distribution:
            return any(name.startswith(metric + _AT) for name in figures)
        return metric in figures

    def _columns(self) -> list[dict[str, str]]:
        name = self._plot.panels
        if name is None:
            return [{}]
        return [{name: value} for value in _distinct(v[name] for v in self._variants if name in v)]

    def _axis(self, metric: str) -> str:
        if self._plot.distribution:
            return "records that take longer"
        unit = self._units.get(metric, "")
        name = metric.removesuffix("_records_per_second") if unit == "records/s" else metric
        return f"{name.replace('_', ' ')}\n({unit})"

    def _scale(self, row: Iterable[Axes]) -> None:
        """Panels that share an axis, once all of them are drawn: what is set before stays for the rest."""
        from matplotlib.ticker import FuncFormatter

        panels = list(row)
        limits = [axes.dataLim for axes in panels]
        highest = max(limit.ymax for limit in limits)
        for axes in panels:
            if self._plot.logarithmic:
                axes.set_yscale("log")
                _decades(axes.yaxis, axes.set_ylim, min(limit.minposy for limit in limits), highest)
            else:
                axes.set_ylim(0, highest * _HEADROOM or 1)
                axes.yaxis.set_major_formatter(FuncFormatter(_short))

    def _scale_distributions(self, panels: Sequence[Axes]) -> None:
        """The rare and slow ones are what matters: a share that is ten times less is a step further down."""
        from matplotlib.ticker import NullLocator

        limits = [axes.dataLim for axes in panels]
        least = min(limit.minposy for limit in limits)
        for axes in panels:
            axes.set_xscale("log")
            first, last = min(limit.minposx for limit in limits), max(limit.xmax for limit in limits)
            _decades(axes.xaxis, axes.set_xlim, first, last)
            axes.set_yscale("log")
            axes.set_ylim(least / 1.5, 1)
            shown = {share: text for share, text in _TAILS.items() if share > least / 1.5}
            axes.set_yticks(list(shown), list(shown.values()))
            axes.yaxis.set_minor_locator(NullLocator())

    def _finish(self, figure: Figure) -> Figure:
        entries: dict[str, Any] = {}
        for axes in figure.axes:
            handles, names = axes.get_legend_handles_labels()
            entries |= dict(zip(names, handles, strict=True))
        figure.suptitle(
            "\n".join(textwrap.wrap(self._title, int(figure.get_figwidth() * 13))), y=1.0, fontsize=10
        )
        figure.tight_layout()
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            ncols=min(4, len(entries) or 1),
        )
        return figure


def _whiskers(axes: Axes, points: Sequence[_Point], colour: str) -> None:
    """From the lowest to the highest sample, where there are several."""
    spread = [point for point in points if point.low < point.high]
    axes.vlines(
        [point.x for point in spread],
        [point.low for point in spread],
        [point.high for point in spread],
        colors=colour,
        linewidth=0.8,
    )


def _decades(axis: Axis, set_limits: Callable[[float, float], object], low: float, high: float) -> None:
    """A logarithmic axis from one of 1, 2, 5, 10, ... to another; of a long one whole decades are named."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    steps = [step * 10.0**power for power in range(-12, 16) for step in _STEPS]
    first = max((step for step in steps if step <= low), default=steps[0])
    last = min((step for step in steps if step >= high and step > first), default=steps[-1])
    set_limits(first, last)
    axis.set_major_locator(LogLocator(subs=(1,) if last / first >= _MANY else _STEPS))
    axis.set_major_formatter(FuncFormatter(_short))
    axis.set_minor_formatter(NullFormatter())


def _short(value: float, _place: object = None) -> str:
    """Thousands and more by their letter, everything else as it is."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _distinct(values: Iterable[_T]) -> list[_T]:
    """In the order of their first appearance; for values that need not be hashable."""
    found: list[_T] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def _has_all(variant: Variant, wanted: Variant) -> bool:
    return all(variant.get(name) == text for name, text in wanted.items())


def _without(variant: Variant, names: Iterable[str]) -> dict[str, str]:
    return {name: text for name, text in variant.items() if name not in set(names)}
