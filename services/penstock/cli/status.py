"""`penstock status`: a broker, and the cluster it is in, on one screen, from their HTTP views."""

from __future__ import annotations

import json
from typing import Any

import typer

from penstock.cli import clusterview
from penstock.cli.options import HTTP, AsJson, HttpAddress
from penstock.cli.terminal import fail, in_bytes, print_json, print_table

_TIMEOUT = 5.0
_ROWS = 20
_VIEWS = ("broker", "topics", "groups", "readers")


def status(http: HttpAddress = HTTP, as_json: AsJson = False) -> None:
    """Show a broker, its topics, groups and local readers, and its cluster if it is in one.

    Exits with 1 when the broker is not ready.

    Example: penstock status --http 127.0.0.1:9644
    """
    base = http if "://" in http else f"http://{http}"
    views = {view: _get(base, f"/v1/{view}") for view in _VIEWS}
    cluster = clusterview.whole(base)
    if cluster is not None:
        views["cluster"] = cluster
    if as_json:
        print_json(views)
    else:
        _show(views)
        if cluster is not None:
            typer.echo()
            clusterview.show(cluster)
    if not views["broker"]["ready"]:
        fail(f"not ready: {views['broker']['reason']}")


def _get(base: str, path: str) -> Any:
    from urllib.error import HTTPError, URLError
    from urllib.request import urlopen

    try:
        with urlopen(base + path, timeout=_TIMEOUT) as response:
            return json.load(response)
    except HTTPError as error:
        fail(f"{base}{path} answers {error.code} {error.reason}: is that a Penstock broker's HTTP address?")
    except (URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        fail(
            f"nothing answers at {base} ({reason}); start a broker with `penstock broker`, or name its HTTP "
            "address with --http HOST:PORT"
        )
    except ValueError:
        fail(f"{base} doesn't answer as a Penstock broker does")


def _show(views: dict[str, Any]) -> None:
    broker = views["broker"]
    memory, disk = broker["memory"], broker["disk"]
    state = "ready" if broker["ready"] else f"NOT READY: {broker['reason']}"
    typer.echo(
        f"broker {broker['broker_id']}  {state}  up {_duration(broker['uptime_seconds'])}  "
        f"kafka {broker['kafka']}  version {broker['version']}"
    )
    typer.echo(
        f"memory {in_bytes(memory['in_use'])} of {in_bytes(memory['budget'])} in use, "
        f"{in_bytes(memory['free'])} free, {in_bytes(memory['detached'])} detached; "
        f"{memory['evictions']:,} evictions"
    )
    typer.echo(
        f"disk   {in_bytes(disk['log_bytes'])} of log, {in_bytes(disk['free'])} free; write-behind "
        f"{in_bytes(disk['unflushed'])}, {disk['write_behind_lag_seconds'] * 1000:.0f} ms behind"
    )
    typer.echo(
        f"serves {broker['connections']:,} connections, {broker['partitions']:,} partitions "
        f"({broker['offline_partitions']} offline); {broker['records_in']:,} records in since it started"
    )
    topics = [topic for topic in views["topics"] if not topic["internal"]]
    rows: list[Any] = [
        (
            t["topic"],
            t["partition_count"],
            t["records_in"],
            in_bytes(t["bytes_in"]),
            in_bytes(t["bytes_out"]),
            in_bytes(t["log_bytes"]),
            in_bytes(t["hot_bytes"]),
        )
        for t in sorted(topics, key=lambda topic: -topic["bytes_in"])
    ]
    _table("topics", ("topic", "partitions", "records in", "in", "out", "log", "in memory"), rows)
    rows = [
        (g["group"], g["state"], g["member_count"], g["lag"], g["max_lag"])
        for g in sorted(views["groups"], key=lambda group: -group["lag"])
    ]
    _table("groups", ("group", "state", "members", "lag", "worst partition"), rows)
    rows = [
        (
            r["label"],
            r["session"][:8],
            len(r["cursors"]),
            r["lag"],
            sum(c["push_records"] for c in r["cursors"]),
            sum(c["pull_records"] for c in r["cursors"]),
        )
        for r in views["readers"]
    ]
    _table("local readers", ("reader", "session", "partitions", "lag", "pushed", "pulled"), rows)


def _table(title: str, columns: tuple[str, ...], rows: list[Any]) -> None:
    if not rows:
        return
    typer.echo()
    print_table(title, columns, rows[:_ROWS])
    if len(rows) > _ROWS:
        typer.echo(f"... and {len(rows) - _ROWS} more; --json has them all")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours}h"
    return f"{hours}h {minutes}m" if hours else f"{minutes}m {rest}s"
