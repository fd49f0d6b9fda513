"""What the figures in the documents come from. Run from a checkout, never part of the tests."""
