"""The `echo-queue` command.

- What is wrong is printed on stderr, each problem with where it is and its fix; the exit code is 2.
- `--json` prints one JSON document on stdout and nothing else.
- Commands import what they need when they run, so that `--help` answers at once; none but `weights verify` and
  `weights fetch` imports torch.
"""

import sys

from echo_queue.errors import EchoQueueError


def main() -> None:
    from echo_queue.cli.commands import app

    try:
        app()
    except EchoQueueError as error:
        from echo_queue.launch.problems import print_problems

        print_problems(error.problems)
        sys.exit(2)
