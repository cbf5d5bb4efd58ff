"""`python -m tests.launch.forked_role FILE [CODE]`: a role that writes down what it finds, and ends or stays."""

import os
import random
import sys
import time
from pathlib import Path

import numpy as np
import orjson

if __name__ == "__main__":
    print("begun", flush=True)
    drawn = {"numpy": np.random.random(), "python": random.random()}
    if torch := sys.modules.get("torch"):
        drawn["torch"] = torch.rand(()).item()
    facts = {
        "arguments": sys.argv[1:],
        "directory": str(Path.cwd()),
        "files": sorted(path.name for path in Path("/proc/self/fd").iterdir()),
        "input": str(Path("/proc/self/fd/0").readlink()),
        "parent": os.getppid(),
        "pid": os.getpid(),
        "random": drawn,
        "session": os.getsid(0),
        "variable": os.environ.get("FORKED_ROLE"),
    }
    file = Path(sys.argv[1])
    file.with_suffix(".new").write_bytes(orjson.dumps(facts))
    file.with_suffix(".new").rename(file)
    if len(sys.argv) > 2:
        sys.exit(int(sys.argv[2]))
    time.sleep(600)
