"""`penstock broker`: run one broker until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal import fail

if TYPE_CHECKING:
    from penstock.settings import Settings


def broker(
    listen: Annotated[str | None, typer.Option(help="Where Kafka clients connect, HOST:PORT.")] = None,
    http: Annotated[str | None, typer.Option(help="Health, metrics and JSON views, HOST:PORT.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="The log on disk.")] = None,
    shm_dir: Annotated[Path | None, typer.Option(help="The log in shared memory.")] = None,
    memory: Annotated[str | None, typer.Option(help="Budget for shared memory, like 4GiB.")] = None,
    broker_id: Annotated[int | None, typer.Option(help="This broker's number.")] = None,
    advertise: Annotated[str | None, typer.Option(help="What clients are told to connect to.")] = None,
    cluster: Annotated[str | None, typer.Option(help="etcd endpoints; without: a single node.")] = None,
    replication_listen: Annotated[
        str | None, typer.Option(help="Where other brokers connect, HOST:PORT.")
    ] = None,
    rack: Annotated[str | None, typer.Option(help="Where it stands, for placing replicas.")] = None,
    config: Annotated[
        Path | None, typer.Option(envvar="PENSTOCK_CONFIG", help="A TOML file with settings.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_json: Annotated[bool | None, typer.Option(help="Log lines as JSON.")] = None,
) -> None:
    """Run a broker until it gets SIGTERM.

    All options have defaults; PENSTOCK_... variables and a TOML file set them too, and more: `penstock
    config` shows them all. Prints one line that starts with "ready:" when clients can come.

    Example: penstock broker --listen 127.0.0.1:9092 --data-dir ./data --memory 2GiB
    """
    import uvloop

    # kio imports hypothesis where it is installed, as it is for our tests: a quarter second of start-up.
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]
    from penstock.broker.server import AlreadyRunning
    from penstock.cli.logs import set_up_logging
    from penstock.settings import SettingsError, load

    options = {
        "listen": listen,
        "http": http,
        "data_dir": data_dir,
        "shm_dir": shm_dir,
        "memory": memory,
        "broker_id": broker_id,
        "advertise": advertise,
        "cluster": cluster,
        "replication_listen": replication_listen,
        "rack": rack,
        "log_level": log_level,
        "log_json": log_json,
    }
    try:
        settings, _ = load(options, os.environ, config)
    except SettingsError as error:
        fail(str(error), code=2)
    set_up_logging(settings.log_level, as_json=settings.log_json)
    try:
        uvloop.run(run(settings))
    except (AlreadyRunning, OSError) as error:
        fail(str(error))
    except sqlite3.OperationalError as error:
        fail(f"{settings.data_dir.resolve()}: {error}; make room there and start again")


async def run(settings: Settings) -> None:
    from penstock.broker.server import Broker
    from penstock.cli.logs import announce

    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = Broker(settings)
    await server.start()
    announce(
        f"ready: kafka {server.listen_address} http {server.http.url} "
        f"shm {server.store.memory_directory} data {settings.data_dir.resolve()}",
        as_json=settings.log_json,
    )
    await stopped.wait()
    await server.stop()
    if (refused := server.store.write_behind.failure) is not None:
        where = server.store.memory_directory
        fail(f"stopped with records in {where} only, where the next start finds them: {refused}")
    announce("stopped: everything is on disk", as_json=settings.log_json)
