"""Export and import: what is stored, as files for other programs, other machines, other tuners.

A file from elsewhere is hostile until each of its rows is checked; docs/files.md says what
stands in one.
"""
