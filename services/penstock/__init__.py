"""Penstock: a Kafka-compatible streaming store that keeps its log in shared memory next to Spark."""

from penstock import compiled

__version__ = "0.1.0"
COMPILED = compiled.choose()
"""Whether the hot modules are C extensions here (`make compile`), or run as Python."""
