"""Tests of the database: look-ups, upkeep, and everything that can go wrong with a file."""
