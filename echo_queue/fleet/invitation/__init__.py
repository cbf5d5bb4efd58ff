"""Invitations: how a machine that has nothing but a token becomes a worker of a run (docs/join.md).

Who may administer the run's Redis issues an invitation: a Redis user of the worker's own, and a signed token that can
be claimed once, until it expires. The machine that claims it gets the user's password, and can lose it again.
"""
