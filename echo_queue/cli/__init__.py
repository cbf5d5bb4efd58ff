"""The `echo-queue` command.

- Problems are printed on stderr, each with its place and its fix; the exit code is then 2, or 3 where prompts died.
- `--json` prints one JSON document on stdout and nothing else.
- A flag with a dot in its name, `--staleness.s=2`, sets a key of the configuration (`overrides`).
- Commands import the modules that they need when they run, so that `--help` answers at once. Only `weights verify` and
  `weights fetch` import torch.
"""

import os
import sys

from echo_queue.errors import EchoQueueError
from echo_queue.launch import entry
from echo_queue.launch.streams import always_writable

ROLES = {"services", "worker", "learner", "join", "notices", "fleet", "metrics"}
"""The commands that run until they are told to end, which is then no failure."""


def main() -> None:
    always_writable()
    if not ROLES.isdisjoint(sys.argv[1:2]):
        entry.end_at_once()
    from echo_queue.cli import overrides
    from echo_queue.cli.commands import app, options_of

    try:
        words, variables = overrides.split(sys.argv[1:])
        os.environ.update(variables)
        overrides.refuse_bare_keys(words, options_of(app))
        app(words)
    except EchoQueueError as error:
        from echo_queue.launch.problem_output import print_problems

        print_problems(error.problems)
        sys.exit(error.exit_code)
