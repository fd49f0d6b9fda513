"""Tests of what a job calls and what a measurement needs."""
