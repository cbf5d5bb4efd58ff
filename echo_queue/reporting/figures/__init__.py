"""The figures of a run: one table that says of each what it is, where it is measured, what is normal, and what to do.

`table` has the figures, `reading` reads from Redis what they are made of, `exposition` prints them for Prometheus, and
`page` writes docs/figures.md.
"""
