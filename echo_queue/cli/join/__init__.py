"""Machines that a token invites."""
