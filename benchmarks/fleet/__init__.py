"""A fleet of rollout workers on one machine that may be taken away: real processes, a real queue, real engines.

Two things are artificial: the pace of an engine's steps, so that a few workers share two cores without slowing one
another, and the length of each sample, so that lengths are heavy-tailed and the same in every run (`trace`).
"""
