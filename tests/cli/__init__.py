"""The command line's tests."""
