"""The processes of a run look for modules among installed packages first, and in the current folder last.

A user's folder may hold `learner.py`, `redis.py` or `datasets/`. Python would put it first, and import these in place
of the packages of their names. It is where reward functions lie, so
`echo_queue.config.module_search` adds it at the end when one is imported.
"""

import sys
from pathlib import Path

PYTHON = (sys.executable, "-P")
"""Begins the command of every process of our own. A variable would reach what users' functions start, too."""


def current_folder_last() -> None:
    """Moves the current folder from the beginning of the path, where Celery has put it, to its end."""
    if sys.path[:1] == [str(Path.cwd())]:
        sys.path.append(sys.path.pop(0))
