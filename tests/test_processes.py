"""What the kernel tells of a process, whatever name that process gave itself."""

import os

from tests.faults.crash_points.forked_process import set_process_name
from tests.processes import process_stat

NAME = ") R 1 (2"


def test_a_process_whose_name_looks_like_its_figures_is_read_as_it_is() -> None:
    before = process_stat(os.getpid())
    assert before
    set_process_name(NAME)
    try:
        now = process_stat(os.getpid())
    finally:
        set_process_name(before.name)
    assert now and (now.name, now.parent) == (NAME, os.getppid())
    assert now.state in "RS" and now.user_ticks >= before.user_ticks > 0


def test_of_a_process_that_is_gone_nothing_is_told() -> None:
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    assert process_stat(child) is None
