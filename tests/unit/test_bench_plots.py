"""Pictures of results: one file for each plot, of whatever was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.bench.experiment import Better, Metric, Plot, Sample
from penstock.bench.plots import CannotPlot, draw, figure_of
from penstock.bench.results import Result

METRICS = (
    Metric("producers_records_per_second", "records/s", Better.MORE),
    Metric("consumers_records_per_second", "records/s", Better.MORE),
)


def result() -> Result:
    made = Result("x", METRICS)
    for contender in ("push", "pull"):
        for chunk in ("1KiB", "16KiB"):
            for consumers in ("1", "2"):
                figures = {metric.name: 1e6 * int(consumers) for metric in METRICS}
                figures |= {f"latency_ms_at_{share}": 10 * share for share in (0.5, 0.9, 0.99)}
                variant = {"chunk": chunk, "consumers": consumers}
                made.samples.append(Sample(contender, variant, 0, figures))
    return made


def size_of(picture: Path) -> tuple[int, int]:
    header = picture.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    return int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")


def test_each_plot_is_a_picture_beside_the_result(tmp_path: Path) -> None:
    names = tuple(metric.name for metric in METRICS)
    plots = (
        Plot(names, along="chunk", panels="consumers"),
        Plot(names, name="bars"),
        Plot(("latency_ms",), name="cdf", distribution=True, panels="chunk"),
    )
    written = draw(result(), plots, tmp_path / "x-1.json")
    assert [path.name for path in written] == ["x-1.png", "x-1-bars.png", "x-1-cdf.png"]
    for path in written:
        width, height = size_of(path)
        assert width > 300
        assert height > 150


def test_an_experiment_that_names_no_plot_gets_bars(tmp_path: Path) -> None:
    assert [path.name for path in draw(result(), (), tmp_path / "x.json")] == ["x.png"]


def test_a_metric_without_figures_is_left_out_and_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CannotPlot, match="nothing to draw"):
        draw(Result("x", METRICS), (), tmp_path / "x.json")
    assert draw(result(), (Plot((METRICS[0].name, "unknown"), along="chunk"),), tmp_path / "x.json")


def test_a_later_panel_may_be_higher_than_the_first() -> None:
    figure = figure_of(result(), Plot((METRICS[0].name,), along="chunk", panels="consumers"))
    assert figure is not None
    assert [axes.dataLim.ymax for axes in figure.axes] == [1e6, 2e6]
    assert [axes.get_ylim() for axes in figure.axes] == [(0, 2e6 * 1.05)] * 2
