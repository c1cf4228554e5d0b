"""A real cluster under seeded faults: real processes in network namespaces, a history, and its checker."""
