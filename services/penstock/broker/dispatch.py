"""From a frame to its handler. The data path is asked first and stays synchronous where it can."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, Final

from penstock.broker.connection import Connection
from penstock.broker.context import BrokerContext
from penstock.broker.fetch import FetchHandler
from penstock.broker.groups.model import ClientInfo
from penstock.broker.metadata import api_versions
from penstock.broker.produce import ProduceHandler
from penstock.broker.reply import Answer, Later, Promise, Reply
from penstock.broker.stats import RequestStats
from penstock.broker.subscribe import subscribe
from penstock.wire import messages
from penstock.wire.apis import SUPPORTED, ApiKey
from penstock.wire.errors import ErrorCode, MalformedRequest
from penstock.wire.head import RequestHead, read_head
from penstock.wire.messages import Request, Tree

log = logging.getLogger(__name__)

_PRODUCE: Final = int(ApiKey.PRODUCE)
_FETCH: Final = int(ApiKey.FETCH)
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_SUBSCRIBE: Final = int(ApiKey.SUBSCRIBE)

Handler = Callable[[Any, int], Tree | Awaitable[Tree]]
GroupHandler = Callable[[Any, int, ClientInfo], Tree | Awaitable[Tree]]


class Dispatcher:
    def __init__(
        self,
        context: BrokerContext,
        produce: ProduceHandler,
        fetch: FetchHandler,
        handlers: dict[ApiKey, Handler],
        group_handlers: dict[ApiKey, GroupHandler],
    ) -> None:
        self._context = context
        self._stats: RequestStats = context.stats
        self._produce = produce
        self._fetch = fetch
        self._handlers: dict[int, Handler] = {int(key): handler for key, handler in handlers.items()}
        self._group_handlers = {int(key): handler for key, handler in group_handlers.items()}
        self._versions = {int(key): versions for key, versions in SUPPORTED.items()}

    def __call__(self, frame: memoryview, connection: Connection) -> Answer:
        started = perf_counter()
        head = read_head(frame)
        versions = self._versions.get(head.api_key)
        if versions is None or not versions.low <= head.api_version <= versions.high:
            return self._unsupported(head)
        if head.api_key == _PRODUCE:
            answer = self._produce.handle(head, frame)
        elif head.api_key == _SUBSCRIBE:
            answer = subscribe(self._context, head, frame)
        else:
            request = messages.read_request(head, frame)
            connection.client_id = request.client_id
            if head.api_key == _FETCH:
                answer = self._fetch.handle(head, request.body)
            elif head.api_key == _API_VERSIONS:
                body = request.body
                name = getattr(body, "client_software_name", "")
                connection.software = f"{name} {getattr(body, 'client_software_version', '')}".strip()
                answer = _reply(head, api_versions())
            else:
                answer = self._handle(request, connection)
        if isinstance(answer, Promise):
            answer.started = started
            return answer
        if isinstance(answer, Later):
            return Later(self._timed(head.api_key, started, answer.work), answer.blocks)
        self._stats.observe(head.api_key, perf_counter() - started)
        return answer

    def _handle(self, request: Request, connection: Connection) -> Answer:
        head = request.head
        group_handler = self._group_handlers.get(head.api_key)
        if group_handler is not None:
            client = ClientInfo(request.client_id, connection.peer.rpartition(":")[0])
            outcome = group_handler(request.body, head.api_version, client)
        else:
            outcome = self._handlers[head.api_key](request.body, head.api_version)
        if inspect.isawaitable(outcome):
            return Later(_encode_later(head, outcome))
        return _reply(head, outcome)

    async def _timed(self, api_key: int, started: float, work: Awaitable[Reply | None]) -> Reply | None:
        try:
            return await work
        finally:
            self._stats.observe(api_key, perf_counter() - started)

    def _unsupported(self, head: RequestHead) -> Answer:
        """As Kafka does: ApiVersions gets an answer that says what there is, anything else is cut off."""
        if head.api_key == _API_VERSIONS:
            answer = api_versions(ErrorCode.unsupported_version)
            return Reply((messages.write_response(_API_VERSIONS, 0, head.correlation_id, answer),))
        raise MalformedRequest(f"api key {head.api_key} version {head.api_version} is not supported")


def _reply(head: RequestHead, tree: Tree) -> Reply:
    return Reply((messages.write_response(head.api_key, head.api_version, head.correlation_id, tree),))


async def _encode_later(head: RequestHead, outcome: Awaitable[Tree]) -> Reply:
    return _reply(head, await outcome)
