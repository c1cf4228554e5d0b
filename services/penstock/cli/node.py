"""`penstock node`: several brokers of one machine under one supervisor, one core each."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.terminal import fail

if TYPE_CHECKING:
    from penstock.settings import Settings


def node(
    brokers: Annotated[int, typer.Option(min=1, max=64, help="How many; about one per core.")],
    cluster: Annotated[str | None, typer.Option(help="etcd endpoints, which all brokers share.")] = None,
    broker_id: Annotated[
        int | None, typer.Option(help="The first broker's number; the others follow.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="Where clients of the first connect; the next ports for the others.")
    ] = None,
    replication_listen: Annotated[
        str | None, typer.Option(help="Where other brokers connect to the first; then the next ports.")
    ] = None,
    http: Annotated[
        str | None, typer.Option(help="Health and metrics of the node; its brokers' are on the next ports.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="The logs on disk, a directory per broker in it.")
    ] = None,
    shm_dir: Annotated[Path | None, typer.Option(help="The logs in shared memory, likewise.")] = None,
    memory: Annotated[str | None, typer.Option(help="Shared memory for all of them, like 8GiB.")] = None,
    advertise: Annotated[str | None, typer.Option(help="What clients are told for the first broker.")] = None,
    rack: Annotated[str | None, typer.Option(help="Where the machine stands, for placing replicas.")] = None,
    config: Annotated[
        Path | None, typer.Option(envvar="PENSTOCK_CONFIG", help="A TOML file with settings.")
    ] = None,
) -> None:
    """Run several brokers on this machine until SIGTERM; one that dies is started again.

    Replicas of a partition go to other racks first: give each machine a --rack.

    Example: penstock node --brokers 4 --cluster http://127.0.0.1:2379 --rack a --memory 8GiB
    """
    from penstock.cli.logs import set_up_logging
    from penstock.settings import SettingsError, load

    options = {
        "cluster": cluster,
        "broker_id": broker_id,
        "listen": listen,
        "replication_listen": replication_listen,
        "http": http,
        "data_dir": data_dir,
        "shm_dir": shm_dir,
        "memory": memory,
        "advertise": advertise,
        "rack": rack,
    }
    try:
        settings, _ = load(options, os.environ, config)
    except SettingsError as error:
        fail(str(error), code=2)
    if not settings.cluster:
        fail("several brokers agree through etcd: name it with --cluster http://HOST:2379", code=2)
    set_up_logging(settings.log_level, as_json=settings.log_json)
    try:
        asyncio.run(run(settings, brokers))
    except OSError as error:
        fail(str(error))


async def run(settings: Settings, count: int) -> None:
    import uvicorn

    from penstock.node.http import make_app
    from penstock.node.supervisor import Supervisor, broker_command, brokers_of

    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)

    def tell(broker: int, line: str) -> None:
        typer.echo(line if settings.log_json else f"broker {broker} | {line}")

    supervisor = Supervisor(brokers_of(settings, count), broker_command, environment_of, tell)
    host, _, port = settings.http.rpartition(":")
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(supervisor),
            host=host,
            port=int(port),
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
        )
    )
    config = server.config
    config.load()
    bound = config.bind_socket()
    await supervisor.start()
    serving = asyncio.create_task(server._serve([bound]))
    ready = asyncio.create_task(supervisor.all_ready())
    waiting = asyncio.create_task(stopped.wait())
    await asyncio.wait({ready, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if ready.done():
        addresses = ",".join(child.settings.listen for child in supervisor.children)
        typer.echo(f"ready: {count} brokers, kafka {addresses} http http://{settings.http}")
    await waiting
    ready.cancel()
    await supervisor.stop()
    server.should_exit = True
    await serving
    typer.echo("stopped: every broker has stopped")


def environment_of(settings: Settings) -> dict[str, str]:
    """A broker's settings as its environment; whatever else is set stays."""
    told = {name: value for name, value in os.environ.items() if name != "PENSTOCK_CONFIG"}
    for name, value in settings.model_dump().items():
        if value is None or value == {}:
            continue
        text = ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
        told[f"PENSTOCK_{name.upper()}"] = json.dumps(value) if isinstance(value, bool) else text
    return told
