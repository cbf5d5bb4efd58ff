"""The worker of a machine: at the pace of a plan, until the controller's order or a signal ends it.

python -m benchmarks.controller.paced_worker CONFIG NAME TRACE COUNTS STEP_S
"""

import logging
import sys
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from benchmarks.fleet.machine import work_at_pace
from benchmarks.fleet.plan import Plan, prepare
from echo_queue.config.loading import load
from workers.shutdown import Shutdown, on_signals


def command(config: Path, plan: Plan, name: str) -> tuple[str, ...]:
    """Returns the words that start this program."""
    words = (config, name, plan.trace, plan.counts, plan.step_s)
    return sys.executable, "-m", "benchmarks.controller.paced_worker", *map(str, words)


def main(config: Path, name: str, plan: Plan) -> None:
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {name} %(name)s: %(message)s", stream=sys.stderr)
    disable_progress_bar()
    shutdown = Shutdown()
    on_signals(shutdown)
    prepare(plan.counts, name)
    work_at_pace(load(config), name, plan, shutdown)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Plan(Path(sys.argv[3]), Path(sys.argv[4]), float(sys.argv[5])))
