"""`python -m tests.faults.crash_points.forked_program FILE`: a role that notes its process id, and ends."""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    with Path(sys.argv[1]).open("a") as file:
        file.write(f"{os.getpid()}\n")
