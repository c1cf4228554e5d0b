"""A node of several brokers: what it derives for each of them, and what it says of them all."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from fastapi import Response
from fastapi.routing import APIRoute

from penstock.node.http import make_app
from penstock.node.supervisor import Supervisor, brokers_of
from penstock.settings import Settings, load


def _settings(**options: str) -> Settings:
    return load(options, {}, None)[0]


def test_no_two_brokers_of_a_node_share_an_address() -> None:
    doors = ("listen", "advertise", "external_listen", "external_advertise", "replication_listen", "http")
    settings = _settings(**{door: f"10.0.0.1:{1000 * at}" for at, door in enumerate(doors, 1)})
    brokers = brokers_of(settings, 3)
    for at, door in enumerate(doors, 1):
        first = 1000 * at + (door == "http")  # the node's own is before them
        expected = [f"10.0.0.1:{first + number}" for number in range(3)]
        assert [getattr(broker, door) for broker in brokers] == expected
    alone = brokers_of(_settings(), 2)
    assert [broker.external_listen for broker in alone] == [None, None]


@contextmanager
def _broker(status: int, body: bytes) -> Iterator[str]:
    """Answers any request so; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"{}", None),
        (503, json.dumps({"reason": "catching up: 3"}).encode(), "broker 7 is not ready: catching up: 3"),
        (503, b"not ours", "broker 7 is not ready: HTTP Error 503"),
        (404, b"", "broker 7 is not ready: HTTP Error 404"),
        (0, b"", "broker 7 doesn't answer"),
    ],
)
async def test_a_node_is_ready_when_its_brokers_say_that_they_are(
    status: int, body: bytes, told: str | None
) -> None:
    with _broker(status or 200, body) as http:
        settings = _settings(http=http if status else "127.0.0.1:1").model_copy(update={"broker_id": 7})
        supervisor = Supervisor([settings], lambda _: [], lambda _: {}, lambda *_: None)
        assert await _readyz(supervisor) == (503, "broker 7 has not started")
        supervisor.children[0].ready = True
        code, reason = await _readyz(supervisor)
    if told is None:
        assert (code, reason) == (200, None)
    else:
        assert code == 503
        assert reason.startswith(told)


async def _readyz(supervisor: Supervisor) -> tuple[int, Any]:
    routes = make_app(supervisor).routes
    readyz = next(route for route in routes if isinstance(route, APIRoute) and route.path == "/readyz")
    response = Response()
    answer = await readyz.endpoint(response)
    assert answer["ready"] is (response.status_code == 200)
    return response.status_code, answer["reason"]
