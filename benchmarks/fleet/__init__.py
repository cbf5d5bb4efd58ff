"""A fleet of rollout workers on one machine that may be taken away: real processes, a real queue, real engines.

Two things are made: how fast an engine steps, so that a few workers share two cores without slowing one another, and
after how many tokens a sample ends, so that lengths are heavy-tailed and the same in every run (`trace`).
"""
