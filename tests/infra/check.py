"""Checks infra/terraform and the other ways to start, without any account.

    python -m tests.infra.check [terraform | launchers | CHECK ...]

Prints each check's verdict; ends with 1 if one found something. `make infra` sets up what the checks need.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.infra.checks import CHECKS, Tree, Unavailable, cases
from tests.infra.launchers import LAUNCHER_CHECKS
from tests.infra.rendered import ROOT

ALL = {**CHECKS, **LAUNCHER_CHECKS}
GROUPS = {"terraform": tuple(CHECKS), "launchers": tuple(LAUNCHER_CHECKS)}
"""The checks that run in one environment."""
LEAST_CASES = 40


def copy_of_tree(folder: Path) -> Tree:
    """Copies the tree, so that nothing of what Terraform writes lands beside the modules."""
    left_out = shutil.ignore_patterns(".terraform*", "*.tfstate*")
    for name in ("infra", "docker"):
        shutil.copytree(ROOT / name, folder / "project" / name, ignore=left_out)
    for name in ("compose.yaml", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / "project")
    return Tree(folder / "project" / "infra" / "terraform", folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", help=f"a group ({', '.join(GROUPS)}), or some of: {', '.join(ALL)}")
    chosen = [name for word in parser.parse_args().checks or GROUPS for name in GROUPS.get(word, (word,))]
    wrong = False
    with tempfile.TemporaryDirectory(prefix="infra-") as scratch:
        tree = copy_of_tree(Path(scratch))
        for name in chosen:
            began = time.monotonic()
            try:
                problems = ALL[name](tree)
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
