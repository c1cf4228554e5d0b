"""Errors that a client may see: one exception, one Kafka error code.

Raised anywhere below the dispatch, turned into a response field by the handler that knows where the
code goes. The message is for the operator's log and for response versions that carry a text.
"""

from __future__ import annotations

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "MalformedRequest"]


class KafkaError(Exception):
    """A request, or a part of one, that is answered with an error code."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code
        self.message = message or None


class MalformedRequest(Exception):
    """Bytes that are no Kafka request: the connection they came on is closed, as Kafka does."""
