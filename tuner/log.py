"""Tells the user one line: through logging where the host configured it, else on stderr.

A line is worth less than the job: nothing that goes wrong here reaches the caller. `logging`
is never imported from here, because a process that has not imported it has not set it up.
"""

from __future__ import annotations

import contextlib
import sys

LOGGER = "tuner"


def inform(message: str) -> None:
    """Say what happened."""
    _say("INFO", message)


def debug(message: str) -> None:
    """Say details; only where the host's logging is set up for them."""
    _say("DEBUG", message)


def warn(message: str) -> None:
    """Say what went wrong, and what to do next."""
    _say("WARNING", message)


def _say(level: str, message: str) -> None:
    line = " ".join(message.split())
    with contextlib.suppress(Exception):
        logging = sys.modules.get("logging")
        logger = logging.getLogger(LOGGER) if logging else None
        if logging is not None and logger is not None and logger.hasHandlers():
            logger.log(getattr(logging, level), "%s", line)
        elif sys.stderr is not None and level != "DEBUG":  # print would take None for stdout
            print(f"tuner: {line}", file=sys.stderr, flush=True)
