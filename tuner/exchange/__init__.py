"""Exchanges runs with other machines and tools: exports, imports, and the rows that both share."""
