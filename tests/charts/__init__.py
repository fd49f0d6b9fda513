"""Tests of the pictures and the report."""
