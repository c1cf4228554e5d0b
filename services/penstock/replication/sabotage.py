"""Deliberately broken builds: rules that PENSTOCK_BREAK, which only tests set, takes out of force.

A test of the tests: the checker of the fault tests must catch each of them. The code that obeys a rule asks
here whether it is still in force; the replicator says loudly when one is not.

    ack-before-backup   the leader commits what no backup has (breaks the rule of the whole set, R2)
    skip-epoch-check    a backup obeys whoever attaches, whatever it promised (R3, R4)
    ignore-storage      an empty log counts as the one that was in sync (R1)
"""

from __future__ import annotations

import os
from typing import Final

RULES: Final = frozenset({"ack-before-backup", "skip-epoch-check", "ignore-storage"})

BROKEN: Final = frozenset(filter(None, os.environ.get("PENSTOCK_BREAK", "").split(",")))
if BROKEN - RULES:
    raise SystemExit(f"PENSTOCK_BREAK: {sorted(BROKEN - RULES)} is none of {sorted(RULES)}")

ACKNOWLEDGES_EARLY: Final = "ack-before-backup" in BROKEN
OBEYS_ANYBODY: Final = "skip-epoch-check" in BROKEN
TRUSTS_EMPTY_LOGS: Final = "ignore-storage" in BROKEN
