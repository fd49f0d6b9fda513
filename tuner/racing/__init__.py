"""Timing configurations and judging the timings: everything pure but `race`, the only clock."""
