"""The metadata store of a cluster: etcd, over its JSON gateway (v3, etcd 3.4 and later).

Plain HTTP on asyncio streams: a handful of kept connections for requests, one more for the watch. Keys
live under a prefix, so that clusters can share an etcd. An answer that doesn't come within the timeout
is `Unavailable`; the endpoints are tried in turn.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from penstock.cluster.metadata import Change, Unavailable, Update, Versioned

log = logging.getLogger(__name__)

TIMEOUT: Final = 2.0
RETRY: Final = 0.2
IDLE: Final = 5.0
"""A watch that says nothing for so long is begun again: a machine that vanished says nothing either."""
_GONE_BACK: Final = (
    "etcd has gone back to an earlier state; serving goes on, nothing is taken from it before a restart (see "
    "'etcd is lost' in docs/operations.md)"
)
_LINE_LIMIT: Final = 256 << 20
"""A watch may bring many keys in one line."""


class _Http:
    """One kept connection. Anything unexpected closes it."""

    def __init__(self, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: Any) -> tuple[int, bytes]:
        await self._send(path, body)
        status, headers = await self._head()
        if headers.get("transfer-encoding") == "chunked":
            content = b"".join([chunk async for chunk in self._chunks()])
        else:
            assert self._reader is not None
            content = await self._reader.readexactly(int(headers.get("content-length", "0")))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, content

    async def stream(self, path: str, body: Any) -> AsyncIterator[bytes]:
        """The lines of an answer that doesn't end."""
        await self._send(path, body)
        status, _ = await self._head()
        if status != 200:
            raise OSError(f"etcd answered {status}")
        rest = b""
        async for chunk in self._chunks():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if line:
                    yield line
            if rest and rest.endswith(b"}") and _is_json(rest):  # 3.4 ends no line until the next begins
                yield rest
                rest = b""
        raise EOFError("etcd ended the answer")

    async def _send(self, path: str, body: Any) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(
                self.host, self.port, limit=_LINE_LIMIT
            )
        content = json.dumps(body).encode()
        self._writer.write(
            f"POST {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n".encode()
            + content
        )
        await self._writer.drain()

    async def _head(self) -> tuple[int, dict[str, str]]:
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = int(head[0].split(" ", 2)[1])
        pairs = (line.split(":", 1) for line in head[1:] if ":" in line)
        return status, {name.strip().lower(): value.strip() for name, value in pairs}

    async def _chunks(self) -> AsyncIterator[bytes]:
        assert self._reader is not None
        while True:
            size = int((await self._reader.readuntil(b"\r\n")).split(b";")[0], 16)
            chunk = await self._reader.readexactly(size + 2)
            if size == 0:
                return
            yield chunk[:-2]

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


class EtcdMetadata:
    def __init__(
        self,
        endpoints: Sequence[str],
        prefix: str = "/penstock",
        timeout: float = TIMEOUT,
        idle: float = IDLE,
    ) -> None:
        self._endpoints = [_address(endpoint) for endpoint in endpoints]
        self._prefix = prefix.rstrip("/")
        self._timeout = timeout
        self._idle_limit = idle
        self._at = 0
        self._idle: list[_Http] = []
        self._watches: set[_Http] = set()
        self.reachable = True
        """Whether the last request or watch got an answer."""
        self.gone_back = False
        """It serves an earlier state than it did before: a backup, restored while we run. Its revisions mean
        other states now, so nothing is asked of it any more, as if it were away."""
        self._newest = 0

    # The store

    async def get(self, key: str) -> Versioned | None:
        answer = await self._call("/v3/kv/range", {"key": self._encode(key)})
        found = answer.get("kvs", ())
        return self._versioned(found[0]) if found else None

    async def scan(self, prefix: str) -> list[Versioned]:
        return (await self._scan(prefix))[0]

    async def swap(self, changes: Sequence[Change], lease: str | None = None) -> bool:
        compare = [
            {
                "key": self._encode(change.key),
                "target": "MOD",
                "result": "EQUAL",
                "mod_revision": str(change.expected),
            }
            for change in changes
        ]
        answer = await self._call(
            "/v3/kv/txn", {"compare": compare, "success": [self._operation(c, lease) for c in changes]}
        )
        return bool(answer.get("succeeded", False))

    def _operation(self, change: Change, lease: str | None) -> dict[str, Any]:
        key = self._encode(change.key)
        if change.value is None:
            return {"request_delete_range": {"key": key}}
        put = {"key": key, "value": _b64(json.dumps(change.value).encode())}
        return {"request_put": put | ({"lease": lease} if lease is not None else {})}

    async def watch(self, prefix: str) -> AsyncGenerator[Update, None]:
        revision = -1
        while True:
            connection: _Http | None = None
            try:
                if revision < 0:
                    entries, revision = await self._scan(prefix)
                    yield Update(tuple(entries), whole=True)
                else:
                    # A watch of an etcd that has gone back waits for the future; a request finds out.
                    await self.get(prefix)
                connection = _Http(*self._endpoints[self._at])
                self._watches.add(connection)
                async for line in self._follow(connection, prefix, revision + 1):
                    result = json.loads(line).get("result", {})
                    if int(result.get("compact_revision", 0)) or result.get("canceled"):
                        revision = -1  # too old to go on from: look at everything again
                        break
                    entries = [self._event(event) for event in result.get("events", ())]
                    if entries:
                        # Not the header's, which is etcd's newest: events on the way to it may still come.
                        revision = entries[-1].revision
                        self._newest = max(self._newest, revision)
                        yield Update(tuple(entries))
                else:
                    continue
            except Unavailable:
                pass  # the request has said so, and gone on to the next endpoint
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                self._lost(error, connection)
            finally:
                if connection is not None:
                    connection.close()
                    self._watches.discard(connection)
            await asyncio.sleep(RETRY)

    async def _follow(self, connection: _Http, prefix: str, revision: int) -> AsyncIterator[bytes]:
        """What a watch says, until it says nothing any more."""
        key, end = self._range(prefix)
        request = {
            "create_request": {
                "key": key,
                "range_end": end,
                "start_revision": str(revision),
            }
        }
        lines = connection.stream("/v3/watch", request)
        # The first line says that the watch is there; without it the connection is no good.
        async with asyncio.timeout(self._timeout):
            line = await anext(lines)
        self.reachable = True
        while True:
            yield line
            try:
                async with asyncio.timeout(self._idle_limit):
                    line = await anext(lines)
            except TimeoutError:
                return

    async def close(self) -> None:
        for connection in (*self._idle, *self._watches):
            connection.close()
        self._idle.clear()

    # Leases

    async def grant(self, seconds: float) -> str:
        return str((await self._call("/v3/lease/grant", {"TTL": str(max(1, round(seconds)))}))["ID"])

    async def keep_alive(self, lease: str) -> bool:
        """False when the lease has run out."""
        answer = await self._call("/v3/lease/keepalive", {"ID": lease})
        return int(answer.get("result", {}).get("TTL", 0)) > 0

    async def revoke(self, lease: str) -> None:
        await self._call("/v3/lease/revoke", {"ID": lease})

    # Requests

    async def _scan(self, prefix: str) -> tuple[list[Versioned], int]:
        key, end = self._range(prefix)
        answer = await self._call("/v3/kv/range", {"key": key, "range_end": end})
        return [self._versioned(kv) for kv in answer.get("kvs", ())], int(answer["header"]["revision"])

    async def _call(self, path: str, body: Any) -> dict[str, Any]:
        if self.gone_back:
            raise Unavailable(_GONE_BACK)
        newest = self._newest
        connection = self._idle.pop() if self._idle else _Http(*self._endpoints[self._at])
        try:
            async with asyncio.timeout(self._timeout):  # wait_for may lose a cancellation (until 3.12)
                status, content = await connection.post(path, body)
            answer: dict[str, Any] = json.loads(content)
        except (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError) as error:
            connection.close()
            self._lost(error, connection)
            raise Unavailable(f"etcd at {connection.host}:{connection.port}: {error!r}") from None
        except BaseException:
            connection.close()
            raise
        if status != 200:
            connection.close()
            if path == "/v3/lease/keepalive" or "lease not found" in str(answer.get("error", "")):
                return {}
            said = f"etcd answered {status}: {answer.get('error', content[:200])}"
            if status >= 500:  # it lives, but not as one of a majority
                self._lost(OSError(said), connection)
            raise Unavailable(said)
        self._idle.append(connection)
        if path.startswith("/v3/kv/"):  # these go through the majority, leases may ask a member that lags
            self._note(int(answer["header"]["revision"]), newest)
        self.reachable = True
        return answer

    def _note(self, revision: int, newest: int) -> None:
        """`newest` is what was known when the request was sent: etcd can't answer with less."""
        if revision < newest:
            if not self.gone_back:
                log.error("%s: revision %d after %d", _GONE_BACK, revision, newest)
            self.gone_back, self.reachable = True, False
            raise Unavailable(_GONE_BACK)
        self._newest = max(self._newest, revision)

    def _lost(self, error: BaseException, connection: _Http | None) -> None:
        if self.reachable:
            log.warning("etcd can't be reached: %r; serving goes on, elections and topics wait", error)
        self.reachable = False
        if connection is not None and (connection.host, connection.port) == self._endpoints[self._at]:
            self._at = (self._at + 1) % len(self._endpoints)  # once, however many requests were lost there
            for idle in self._idle:
                idle.close()
            self._idle.clear()

    # Encoding

    def _encode(self, key: str) -> str:
        return _b64((self._prefix + key).encode())

    def _range(self, prefix: str) -> tuple[str, str]:
        start = (self._prefix + prefix).encode()
        return _b64(start), _b64(start[:-1] + bytes([start[-1] + 1]))

    def _versioned(self, kv: dict[str, str]) -> Versioned:
        value = json.loads(base64.b64decode(kv.get("value", ""))) if "value" in kv else None
        key = base64.b64decode(kv["key"]).decode()
        return Versioned(key.removeprefix(self._prefix), value, int(kv["mod_revision"]))

    def _event(self, event: dict[str, Any]) -> Versioned:
        if event.get("type") == "DELETE":
            key = base64.b64decode(event["kv"]["key"]).decode().removeprefix(self._prefix)
            return Versioned(key, None, int(event["kv"]["mod_revision"]))
        return self._versioned(event["kv"])


def _b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _is_json(text: bytes) -> bool:
    with contextlib.suppress(ValueError):
        json.loads(text)
        return True
    return False


def endpoints_of(text: str) -> list[str]:
    """The endpoints in a list like http://10.0.0.1:2379,http://10.0.0.2:2379. ValueError if one can't be."""
    endpoints = [endpoint.strip() for endpoint in text.split(",") if endpoint.strip()]
    if not endpoints:
        raise ValueError(f"{text!r} names no etcd endpoint; write http://HOST:2379")
    for endpoint in endpoints:
        _address(endpoint)
    return endpoints


def _address(endpoint: str) -> tuple[str, int]:
    parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
    if "@" in parts.netloc:  # not shown: there is a password in it
        raise ValueError(
            f"etcd at {parts.hostname}: no user and password, brokers don't log in to etcd; keep it where "
            "only they reach it"
        )
    if parts.scheme == "https":
        raise ValueError(
            f"{endpoint!r}: brokers speak plain HTTP to etcd, no TLS; write http://HOST:2379 and keep it "
            "where only they reach it"
        )
    if parts.scheme != "http" or parts.hostname is None or parts.path.strip("/") or parts.query:
        raise ValueError(f"{endpoint!r} is not an etcd endpoint; write http://HOST:2379")
    return parts.hostname, parts.port or 2379
