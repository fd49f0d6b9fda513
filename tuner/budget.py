"""How long a measurement may take: a new one, and one that goes on with an undecided verdict."""

from __future__ import annotations

TIME_BUDGET_S = 10.0
"""Seconds of the pool's time that one measurement may take."""

RESUME_SHARE = 0.1
"""Share of that which a process may spend on a verdict that earlier ones left undecided."""

FEWEST_TIMINGS = 5
"""Timings of the default without which there is no point in going on: a warm-up and a quartet."""

GRACE_S = 5.0
"""Seconds that a measurement may take beyond its budget before others stop waiting for it."""


def can_resume(default_ms: float, time_budget_s: float) -> bool:
    """Tell whether steps are short enough for the share of a budget that going on may take."""
    return FEWEST_TIMINGS * default_ms <= RESUME_SHARE * time_budget_s * 1e3
