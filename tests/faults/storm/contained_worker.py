"""A worker of a storm, as the program of a container: `python3 -m tests.faults.storm.contained_worker DIRECTORY NAME`.

It has its name, by which the storm finds it among all processes, before it imports what takes seconds.
"""

import os
import sys
from pathlib import Path

from tests.faults.crash_points.forked_process import set_process_name

if __name__ == "__main__":
    directory, name = Path(sys.argv[1]), sys.argv[2]
    set_process_name(name)
    with (directory / "logs" / f"{name}.log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    from tests.faults.storm.roles import run_role

    sys.exit(run_role(directory, ("worker", name)))
