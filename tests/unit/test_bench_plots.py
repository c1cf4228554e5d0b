"""Pictures of results: one file for each plot, of whatever was measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib import pyplot
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from penstock.bench.experiment import Better, Metric, Plot, Sample, load, names
from penstock.bench.plots import CannotPlot, draw, figure_of
from penstock.bench.results import Result

METRICS = (
    Metric("producers_records_per_second", "records/s", Better.MORE),
    Metric("consumers_records_per_second", "records/s", Better.MORE),
)


@pytest.fixture(autouse=True)
def _no_figures_left() -> Iterator[None]:
    yield
    pyplot.close("all")


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


def drawn(found: Result, plot: Plot, order: tuple[str, ...] = ()) -> Figure:
    figure = figure_of(found, plot, "title", order)
    assert figure is not None
    return figure


def of_contenders(*contenders: str, figures: dict[str, float] | None = None) -> Result:
    made = Result("x", METRICS)
    given = {metric.name: 1.0 for metric in METRICS} if figures is None else figures
    made.samples += [Sample(each, {"chunk": "1KiB"}, 0, given) for each in contenders]
    return made


def test_a_later_panel_may_be_higher_than_the_first() -> None:
    figure = drawn(result(), Plot((METRICS[0].name,), along="chunk", panels="consumers"))
    assert [axes.dataLim.ymax for axes in figure.axes] == [1e6, 2e6]
    assert [axes.get_ylim() for axes in figure.axes] == [(0, 2e6 * 1.05)] * 2


def test_bars_stand_in_as_many_rows_as_a_page_is_wide() -> None:
    metrics = tuple(Metric(f"metric{number}", "", Better.MORE) for number in range(7))
    made = Result("x", metrics)
    made.samples.append(Sample("push", {"chunk": "1KiB"}, 0, {metric.name: 1.0 for metric in metrics}))
    figure = drawn(made, Plot(tuple(metric.name for metric in metrics)))
    assert len(figure.axes) == 7
    assert figure.get_figwidth() * 110 < 1030


def test_a_metric_is_not_there_because_a_longer_name_is() -> None:
    made = of_contenders("push", figures={"cost_at_full_speed": 1.0})
    assert figure_of(made, Plot(("cost",), along="chunk")) is None


def test_a_metric_that_other_variants_have_is_left_out() -> None:
    made = result()
    made.samples.append(Sample("push", {"chunk": "4KiB", "consumers": "1"}, 0, {"other": 1.0}))
    assert figure_of(made, Plot(("other",), along="chunk", within={"consumers": "2"})) is None


def test_the_title_says_what_is_the_same_everywhere() -> None:
    figure = drawn(result(), Plot((METRICS[0].name,), along="chunk", within={"consumers": "2"}))
    assert figure.get_suptitle() == "title, consumers 2"


def test_ticks_of_bars_say_what_they_are() -> None:
    made = result()
    figure = drawn(made, Plot((METRICS[0].name,), within={"consumers": "2"}))
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["chunk 1KiB", "chunk 16KiB"]


def test_a_contender_has_its_place_and_colour_whoever_came_first() -> None:
    order = ("mine", "push", "raw", "yours")
    plot = Plot((METRICS[0].name,), along="chunk")
    colours = []
    for made in (of_contenders("yours", "raw", "push", "mine"), of_contenders("raw", "yours")):
        lines = drawn(made, plot, order).axes[0].get_lines()
        places = [order.index(str(line.get_label())) for line in lines]
        assert places == sorted(places)
        colours.append({str(line.get_label()): to_hex(line.get_color()) for line in lines})
    assert colours[0]["yours"] == colours[1]["yours"]
    assert len(set(colours[0].values())) == 4


def test_no_two_contenders_of_an_experiment_look_alike() -> None:
    for name in names():
        subject = load(name)
        made = of_contenders(*subject.contenders)
        lines = drawn(made, Plot((METRICS[0].name,), along="chunk"), subject.contenders).axes[0].get_lines()
        assert len({to_hex(line.get_color()) for line in lines}) == len(subject.contenders), name
        pyplot.close("all")


def test_numbers_are_plain_below_a_thousand_and_every_axis_has_some() -> None:
    for figures, logarithmic, wanted in (
        ((0.2, 0.75), False, "0.4"),
        ((600.0, 1200.0), True, "1k"),
        ((600.0, 1200.0), True, "500"),
        ((0.5, 3e6), True, "100"),
    ):
        made = of_contenders("push", figures={"rate": figures[0]})
        made.samples += of_contenders("pull", figures={"rate": figures[1]}).samples
        axes = drawn(made, Plot(("rate",), along="chunk", logarithmic=logarithmic)).axes[0]
        low, high = axes.get_ylim()
        places = axes.get_yticks()
        texts = axes.yaxis.get_major_formatter().format_ticks(list(places))
        shown = [text for text, place in zip(texts, places, strict=True) if low <= place <= high]
        assert wanted in shown
        assert not any(axes.yaxis.get_minor_formatter().format_ticks(list(places)))


def test_bars_are_dots_where_their_length_would_mean_nothing() -> None:
    plot = Plot((METRICS[0].name,), logarithmic=True)
    (axes,) = drawn(of_contenders("push", "pull"), plot).axes
    assert not axes.patches
    assert [line.get_label() for line in axes.get_lines()] == ["push", "pull"]


def test_a_distribution_shows_the_share_that_takes_longer() -> None:
    figures = {f"latency_ms_at_{share}": 10 * share for share in (0.5, 0.9, 0.99, 0.999)}
    plot = Plot(("latency_ms",), distribution=True)
    (axes,) = drawn(of_contenders("push", figures=figures), plot).axes
    (line,) = axes.get_lines()
    assert list(line.get_xdata()) == [5, 9, 9.9, 9.99]
    assert list(line.get_ydata()) == pytest.approx([0.5, 0.1, 0.01, 0.001])
    assert axes.get_yscale() == "log"
    assert "0.1 % (p99.9)" in [text.get_text() for text in axes.get_yticklabels()]


def test_samples_of_one_point_show_how_far_they_are_apart() -> None:
    made = of_contenders("push", figures={"rate": 3.0})
    made.samples += of_contenders("push", figures={"rate": 5.0}).samples
    (axes,) = drawn(made, Plot(("rate",), along="chunk")).axes
    (whisker,) = axes.collections[0].get_paths()
    assert [tuple(point) for point in whisker.vertices] == [(0, 3), (0, 5)]
    assert axes.get_ylim() == (0, 5 * 1.05)
