"""Log lines: one per event, for people or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry)


def announce(line: str, *, as_json: bool) -> None:
    """What whoever started this process waits for: on standard output, at any level, shaped as the log is."""
    if as_json:
        line = _Json().format(logging.makeLogRecord({"name": "penstock", "levelname": "INFO", "msg": line}))
    print(line, flush=True)


def set_up_logging(level: str, *, as_json: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(_Json())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
