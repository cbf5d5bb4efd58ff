"""Starts roles within milliseconds: one process imports what they need, and forks each of them.

`client` is the supervisor's side, `program` is that process.
"""
