"""Ports for tests: what one has taken no other gets, nor anybody's connection."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness import free_port, free_ports

_ELSEWHERE = """
import harness
harness._unused = iter(range({first}, {first} + 1000))
print(*(harness.free_port() for _ in range(20)))
"""


def test_a_port_is_taken_once_and_never_by_a_connection() -> None:
    ours = [free_port() for _ in range(20)]
    run = free_ports(5)
    ours += range(run, run + 5)
    assert len(set(ours)) == 25
    connections = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(ours) < connections

    tests = Path(__file__).parents[1]
    command = [sys.executable, "-c", _ELSEWHERE.format(first=ours[0])]
    theirs = subprocess.run(command, cwd=tests, capture_output=True, text=True, check=True).stdout.split()
    assert len(theirs) == 20
    assert not {str(port) for port in ours} & set(theirs)
