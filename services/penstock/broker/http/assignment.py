"""A consumer's assignment, as Kafka's clients encode it inside SyncGroup: which partitions it has.

    version i16 | count i32, (topic: length i16, UTF-8 | count i32, partition i32 ...) ... | user data

To the coordinator these are opaque bytes of the clients' own; they are read only to be shown.
"""

from __future__ import annotations

import struct
from typing import Final

_SHORT: Final = struct.Struct(">h")
_INT: Final = struct.Struct(">i")


def read_assignment(encoded: bytes) -> dict[str, list[int]]:
    """Topic to partitions; empty for bytes that are something else (Connect has its own format)."""
    assigned: dict[str, list[int]] = {}
    try:
        (topics,) = _INT.unpack_from(encoded, 2)
        at = 6
        for _ in range(topics):
            (length,) = _SHORT.unpack_from(encoded, at)
            at += 2
            topic = encoded[at : at + length].decode()
            at += length
            (count,) = _INT.unpack_from(encoded, at)
            assigned[topic] = sorted(struct.unpack_from(f">{count}i", encoded, at + 4))
            at += 4 + 4 * count
    except (struct.error, UnicodeDecodeError):
        return {}
    return assigned
