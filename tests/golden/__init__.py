"""A database of every released revision, made by that revision's code, and what made them."""
