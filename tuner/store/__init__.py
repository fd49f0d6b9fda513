"""The database: how it is opened, what stands in it, and how answers are found in it.

`lookup` is the way of every hit and needs the standard library only; everything else here goes
through SQLAlchemy Core. Nothing in this folder times a pool or chooses a candidate.
"""
