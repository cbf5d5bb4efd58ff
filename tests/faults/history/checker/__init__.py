"""The checker judges from outside whether the pipeline kept its promises, in the sense of Jepsen's total-queue.

Pure: `judge` compares what the roles attempted and were told (`history`) with what survives: the newest checkpoint's
chain, the queue's last audit, and audits taken all along. It believes the queue only about what it counts, never
about what was trained or how old that was. Each violation names ids and the lines of history that concern them.

`evidence`: what is known, and how it is asked. `check_prompts`: what became of each prompt. `check_weights`: what made
it. `check_partials`: what others went on from. `check_evaluation`: what rounds asked, and found out. `check_books`:
whether all counts agree. `check_fleet`: whether its machines were started and ended once. `check_mixture`: whether
components had their shares. `verdict`: all of it.
"""

from tests.faults.history.checker.check_books import keeps
from tests.faults.history.checker.evidence import Evidence, Kept, KeptRow, Link, Snapshot, Update
from tests.faults.history.checker.verdict import Verdict, judge

__all__ = ["Evidence", "Kept", "KeptRow", "Link", "Snapshot", "Update", "Verdict", "judge", "keeps"]
