"""A module whose import takes until a file appears."""

import os
import time
from pathlib import Path

file = Path(os.environ["SLOW_IMPORT"])
file.with_suffix(".waits").touch()
while not file.exists():
    time.sleep(0.01)
