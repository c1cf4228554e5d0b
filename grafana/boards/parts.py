"""What dashboards are made of: a board with its variables and annotations, graphs and single figures.

Every panel says what it shows in words and has a unit; `levels` are where it turns yellow and red. Queries
name no cluster: `where()` makes the selector that heeds the dashboard's variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

from grafana_foundation_sdk.builders import common as looks
from grafana_foundation_sdk.builders import dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.models import common, units
from grafana_foundation_sdk.models import dashboard as models

SOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG: Final = "penstock"
PER_SECOND: Final = "[$__rate_interval]"

NUMBER: Final = units.Short
BYTES: Final = units.BytesIEC
BYTES_PER_SECOND: Final = units.BytesPerSecondIEC
SECONDS: Final = units.Seconds
RECORDS_PER_SECOND: Final = units.RecordsPerSecond
REQUESTS_PER_SECOND: Final = units.RequestsPerSecond
SHARE: Final = units.PercentUnit

Panel = timeseries.Panel | stat.Panel
SomePanel = TypeVar("SomePanel", timeseries.Panel, stat.Panel)


class Query(NamedTuple):
    expr: str
    legend: str = "__auto"


class Levels(NamedTuple):
    """Where green ends; with `falling`, small values are the bad ones."""

    warn: float
    bad: float
    falling: bool = False


# PromQL


def where(*extra: str, topic: bool = False, query: bool = False) -> str:
    """A selector: this cluster's series, of the chosen topics or queries."""
    chosen = ['cluster=~"$cluster"']
    chosen += ['topic=~"$topic"'] if topic else []
    chosen += ['query=~"$query"'] if query else []
    return "{" + ", ".join([*chosen, *extra]) + "}"


def rate(metric: str, selector: str, by: str = "") -> str:
    return summed(f"rate({metric}{selector}{PER_SECOND})", by)


def summed(expr: str, by: str = "") -> str:
    return f"sum by ({by}) ({expr})" if by else f"sum({expr})"


def quantile(share: float, metric: str, selector: str, by: str = "") -> str:
    labels = ", ".join(filter(None, ("le", by)))
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', selector, labels)})"


def or_zero(expr: str) -> str:
    """For what is rightly without a series until something happens."""
    return f"({expr}) or on() vector(0)"


# Panels


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    levels: Levels | None = None,
    span: int = 8,
    stacked: bool = False,
) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .thresholds(_thresholds(levels))
        .span(span)
        .height(8)
        .line_width(1)
        .fill_opacity(10)
        .show_points(common.VisibilityMode.NEVER)
        .legend(
            looks.VizLegendOptions()
            .display_mode(common.LegendDisplayMode.LIST)
            .placement(common.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(looks.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI))
    )
    if levels is not None:
        panel.thresholds_style(
            looks.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )
    if stacked:
        panel.stacking(looks.StackingConfig().mode(common.StackingMode.NORMAL))
    return _with_queries(panel, queries)


def figure(
    title: str, description: str, unit: str, query: Query, levels: Levels | None = None, span: int = 4
) -> stat.Panel:
    """One number that says whether all is well."""
    panel = (
        stat.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit(unit)
        .thresholds(_thresholds(levels))
        .span(span)
        .height(4)
        .graph_mode(common.BigValueGraphMode.AREA)
        .color_mode(common.BigValueColorMode.VALUE)
        .reduce_options(looks.ReduceDataOptions().calcs(["lastNotNull"]))
    )
    return _with_queries(panel, [query])


def _with_queries(panel: SomePanel, queries: Sequence[Query]) -> SomePanel:
    for number, query in enumerate(queries):
        panel.with_target(
            prometheus.Dataquery()
            .datasource(SOURCE)
            .ref_id(chr(ord("A") + number))
            .expr(query.expr)
            .legend_format(query.legend)
            .range()
        )
    return panel


def _thresholds(levels: Levels | None) -> dashboard.ThresholdsConfig:
    steps: list[tuple[float | None, str]] = [(None, "green")]
    if levels is not None and levels.falling:
        steps = [(None, "red"), (levels.bad, "yellow"), (levels.warn, "green")]
    elif levels is not None:
        steps += [(levels.warn, "yellow"), (levels.bad, "red")]
    return (
        dashboard.ThresholdsConfig()
        .mode(models.ThresholdsMode.ABSOLUTE)
        .steps([models.Threshold(value=value, color=color) for value, color in steps])
    )


# The board


def board(uid: str, title: str, description: str, rows: dict[str, Sequence[Panel]]) -> dashboard.Dashboard:
    made = (
        dashboard.Dashboard(f"Penstock / {title}")
        .uid(f"penstock-{uid}")
        .description(description)
        .tags([TAG])
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time("now-15m", "now")
        .refresh("5s")
        .timezone("browser")
        .link(
            dashboard.DashboardLink("Penstock")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_choice("cluster", "label_values(penstock_build_info, cluster)"))
        .with_variable(_choice("topic", f"label_values(penstock_topic_partitions{where()}, topic)"))
        .with_variable(_choice("query", f"label_values(penstock_query_running{where()}, query)"))
    )
    for annotation in _annotations():
        made.annotation(annotation)
    for name, panels in rows.items():
        made.with_row(dashboard.Row(name))
        for panel in panels:
            made.with_panel(panel)
    return made


def _choice(name: str, values: str) -> dashboard.QueryVariable:
    everything = models.VariableOption(text="All", value="$__all", selected=True)
    return (
        dashboard.QueryVariable(name)
        .label(name.capitalize())
        .datasource(SOURCE)
        .query(values)
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(everything)
    )


def _annotations() -> list[dashboard.AnnotationQuery]:
    later = where('cause!="first"')
    elections = summed(f"increase(penstock_elections_total{later}{PER_SECOND})", "instance, cause")
    changes = summed(f"increase(penstock_query_change_overs_total{where(query=True)}{PER_SECOND})", "query")
    return [
        _annotation("Elections", "red", f"{elections} > 0", "{{cause}}", "{{instance}} began to lead"),
        _annotation("Push/pull", "purple", f"{changes} > 0", "{{query}}", "went from push to pull or back"),
    ]


def _annotation(name: str, color: str, expr: str, title: str, text: str) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery()
        .name(name)
        .datasource(SOURCE)
        .enable(True)
        .hide(False)
        .icon_color(color)
        .expr(expr)
        .title_format(title)
        .text_format(text)
    )
