"""Checks infra/terraform without any account.

    python -m tests.infra.check [CHECK ...]

Prints each check's verdict; ends with 1 if one found something. `make infra` sets up what the checks need.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.infra.checks import CHECKS, Tree, Unavailable, cases
from tests.infra.rendered import TERRAFORM

LEAST_CASES = 40


def copy_of_tree(folder: Path) -> Tree:
    """Copies the tree, so that nothing of what Terraform writes lands beside the modules."""
    left_out = shutil.ignore_patterns(".terraform*", "*.tfstate*")
    return Tree(Path(shutil.copytree(TERRAFORM, folder / "terraform", ignore=left_out)), folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", help=f"some of: {', '.join(CHECKS)}")
    chosen = parser.parse_args().checks or list(CHECKS)
    wrong = False
    with tempfile.TemporaryDirectory(prefix="infra-") as scratch:
        tree = copy_of_tree(Path(scratch))
        for name in chosen:
            began = time.monotonic()
            try:
                problems = CHECKS[name](tree)
            except Unavailable as reason:
                print(f"{name}: SKIPPED, {reason}", flush=True)
                continue
            print(f"{name}: {'FOUND' if problems else 'ok'} ({time.monotonic() - began:.0f} s)", flush=True)
            for problem in problems:
                print(f"  {problem}", flush=True)
            wrong = wrong or bool(problems)
    if cases:
        print(f"{sum(cases)} cases of terraform test in {len(cases)} modules", flush=True)
        wrong = wrong or sum(cases) < LEAST_CASES
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
