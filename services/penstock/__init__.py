"""Penstock: a Kafka-compatible streaming store that keeps its log in shared memory next to Spark."""

__version__ = "0.1.0"
