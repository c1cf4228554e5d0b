"""Pictures of a result, in one style, readable in a README: PNG files beside its JSON.

Called after every run and by `penstock bench plot`. What is drawn is the experiment's to say (`Plot`); an
experiment that says nothing gets bars of each metric. A contender has the same colour in every picture.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.bench.experiment import Plot, Variant
from penstock.bench.results import Result, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
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
    "pull": "#e69f00",
    "native pull": "#009e73",
    "no consumers": "#888888",
    "kafka": "#d55e00",
    "kafka tuned": "#cc79a7",
}
_OTHERS: Final = ("#56b4e9", "#882255", "#44aa99", "#332288", "#999933", "#661100", "#f0e442")
_MARKS: Final = "os^Dv<>P"
_PANEL: Final = (3.1, 2.3)
_HEADROOM: Final = 1.05
_AT: Final = "_at_"
_T = TypeVar("_T")


class CannotPlot(Exception):
    """There is nothing to draw with, or nothing to draw; the text says which."""


def draw(result: Result, plots: Sequence[Plot], path: Path, title: str = "") -> list[Path]:
    """Write the pictures of a result that lies at `path`; where they are."""
    try:
        import matplotlib
    except ImportError:
        raise CannotPlot("matplotlib is not installed: pip install 'penstock[bench]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    written = []
    for plot in plots or [Plot(tuple(metric.name for metric in result.metrics))]:
        with matplotlib.rc_context(_STYLE):
            figure = figure_of(result, plot, title)
            if figure is None:
                continue
            target = path.with_suffix("").with_name(path.stem + (f"-{plot.name}" if plot.name else ""))
            figure.savefig(target.with_suffix(".png"))
            pyplot.close(figure)
            written.append(target.with_suffix(".png"))
    if not written:
        raise CannotPlot("the result has nothing to draw")
    return written


def figure_of(result: Result, plot: Plot, title: str = "") -> Figure | None:
    """One picture, not yet written; None if the result has nothing for it."""
    return _Drawing(result, plot, title).figure()


class _Drawing:
    def __init__(self, result: Result, plot: Plot, title: str) -> None:
        self._result = result
        self._title = ", ".join(
            filter(None, (plot.title or title or result.experiment, *plot.within.values()))
        )
        self._plot = plot
        self._units = {metric.name: metric.unit for metric in result.metrics}
        self._variants = [
            variant
            for variant in _distinct(sample.variant for sample in result.samples)
            if _has_all(variant, plot.within)
        ]
        self._contenders = _distinct(sample.contender for sample in result.samples)
        others = cycle(_OTHERS)
        self._colours = {each: _COLOURS.get(each) or next(others) for each in self._contenders}

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
            sharey="row",
            figsize=(_PANEL[0] * len(columns), _PANEL[1] * len(rows)),
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
        return self._finish(figure)

    def _bars(self, metrics: Sequence[str]) -> Figure:
        """A panel for each metric: variants along the axis, a bar for each contender."""
        from matplotlib import pyplot

        wide = max(_PANEL[0], 0.35 * len(self._variants) * len(self._contenders))
        figure, grid = pyplot.subplots(
            1, len(metrics), squeeze=False, figsize=(wide * len(metrics), _PANEL[1] * 1.2)
        )
        width = 0.8 / len(self._contenders)
        for axes, metric in zip(grid[0], metrics, strict=True):
            for index, contender in enumerate(self._contenders):
                heights = [self._median(metric, contender, variant) for variant in self._variants]
                places = [at + index * width for at in range(len(self._variants))]
                known = [(x, y) for x, y in zip(places, heights, strict=True) if y is not None]
                if known:
                    x, y = zip(*known, strict=True)
                    axes.bar(x, y, width * 0.92, color=self._colours[contender], label=contender)
            axes.set_xticks([at + 0.4 - width / 2 for at in range(len(self._variants))])
            texts = ["\n".join(variant.values()) for variant in self._variants]
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
        for contender in self._contenders:
            for mark, rest in zip(cycle(_MARKS), lines):  # marks begin again
                own = [variant for variant in within if _has_all(variant, rest)]
                points = (
                    self._quantiles(metric, contender, own)
                    if along is None
                    else [(variant[along], self._median(metric, contender, variant)) for variant in own]
                )
                known = [(x, y) for x, y in points if y is not None]
                if not known:
                    continue
                x, y = zip(*known, strict=True)
                name = contender + (f", {label(rest)}" if len(lines) > 1 else "")
                axes.plot(
                    x,
                    y,
                    color=self._colours[contender],
                    label=name,
                    linestyle="-" if rest == lines[0] else "--",
                    marker=None if along is None else mark,
                )
        if along is None:
            axes.set_xscale("log")
            axes.set_xlabel(f"{metric.replace('_', ' ')}")
        else:
            axes.set_xlabel(along)

    def _quantiles(
        self, metric: str, contender: str, variants: Sequence[Variant]
    ) -> list[tuple[float, float | None]]:
        """(value, share of the records that had at most that), medians of the samples."""
        start = metric + _AT
        found: dict[float, list[float]] = {}
        for sample in self._result.samples:
            if sample.contender == contender and sample.variant in variants:
                for name, value in sample.figures.items():
                    if name.startswith(start):
                        found.setdefault(float(name.removeprefix(start)), []).append(value)
        return [(median(values), share) for share, values in sorted(found.items())]

    def _median(self, metric: str, contender: str, variant: Variant) -> float | None:
        values = self._result.by_key(metric).get((label(variant), contender))
        return median(values) if values else None

    def _has(self, metric: str) -> bool:
        start = metric + _AT if self._plot.distribution else metric
        return any(name.startswith(start) for sample in self._result.samples for name in sample.figures)

    def _columns(self) -> list[dict[str, str]]:
        name = self._plot.panels
        if name is None:
            return [{}]
        return [{name: value} for value in _distinct(v[name] for v in self._variants if name in v)]

    def _axis(self, metric: str) -> str:
        if self._plot.distribution:
            return "share of records"
        unit = self._units.get(metric, "")
        name = metric.removesuffix("_records_per_second") if unit == "records/s" else metric
        return f"{name.replace('_', ' ')}\n({unit})"

    def _scale(self, row: Iterable[Axes]) -> None:
        """Panels that share an axis, once all of them are drawn: what is set before stays for the rest."""
        from matplotlib.ticker import EngFormatter

        panels = list(row)
        highest = max(axes.dataLim.ymax for axes in panels)
        for axes in panels:
            if self._plot.logarithmic:
                axes.set_yscale("log")
            else:
                axes.set_ylim(0, highest * _HEADROOM or 1)
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))

    def _finish(self, figure: Figure) -> Figure:
        entries: dict[str, Any] = {}
        for axes in figure.axes:
            handles, names = axes.get_legend_handles_labels()
            entries |= dict(zip(names, handles, strict=True))
        figure.suptitle("\n".join(textwrap.wrap(self._title, int(figure.get_figwidth() * 13))), y=1.0)
        figure.tight_layout()
        figure.legend(
            list(entries.values()),
            list(entries),
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            ncols=min(4, len(entries) or 1),
        )
        return figure


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
