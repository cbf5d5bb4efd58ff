"""The table of a run's ends: the exit codes of `run` and of `learner`, and what both say last.

Whole commands end in `tests/pipeline` (`test_dead.py`, `test_open.py`), and learners in `tests/learner/test_end.py`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from echo_queue.cli.inspect.live.watcher import monitor
from echo_queue.cli.run.end import End, conclude
from echo_queue.config import Config
from echo_queue.errors import DONE, HOPELESS, EchoQueueError
from echo_queue.launch.servers.redis_server import RedisServer
from echo_queue.queue.dead_causes import check_end
from echo_queue.reporting.components import ComponentFigures
from echo_queue.reporting.metrics import MetricsLog
from tests.queue.clients import Clients
from tests.queue.queue_harness import RULES, QueueHarness
from tests.synthetic import update

CONFIG = Path("run.toml")
UPDATES = 2
PROMPTS = UPDATES * RULES.batch
OURS = "the observed ranges do not rise\n    → check the worker that made it"

SUMS, WORDS = (
    ComponentFigures(groups, 16 * groups, 160 * groups, mean, 10.0, 0.0, 0) for groups, mean in ((3, 0.25), (1, 1.0))
)


class Ending(NamedTuple):
    """`live` is what happens to a run of `PROMPTS` prompts. `said` ends the words of `run`, up to its paths, and
    `learner_said` those of the learner; `recorded` is in every update."""

    cause: str
    live: Callable[[QueueHarness], object]
    code: int = DONE
    said: str = ""
    learner_said: str = ""
    recorded: dict[str, object] = {}  # noqa: RUF012 (it is never changed)
    max_updates: int = 0


def all_is_trained(harness: QueueHarness) -> None:
    for _ in range(UPDATES):
        harness.round()
    harness.queue.finish(harness.version.lineage)


def one_dies_of(reason: str) -> Callable[[QueueHarness], None]:
    """Returns a life in which the first prompt dies, and all others are trained."""

    def live(harness: QueueHarness) -> None:
        [task] = harness.lease(1)
        assert harness.queue.bury(task.id, reason)
        all_is_trained(harness)

    return live


def one_update_is_enough(harness: QueueHarness) -> None:
    harness.round()
    harness.queue.finish(harness.version.lineage, force=True)


ENDINGS = (
    Ending("all trained", all_is_trained, said=f"✓ submitted {PROMPTS} = backlog 0 + tasks 0 + replay 0 + trained"),
    Ending(
        "one died of an error of ours",
        one_dies_of(OURS),
        HOPELESS,
        "1× the observed ranges do not rise → check the worker that made it (for example a/0/0) → fix that; "
        "`echo-queue run run.toml` then tries it again",
        f"✗ run: 1 of {PROMPTS} prompts died and is not in the model. The commonest reason, 1× (for example a/0/0): "
        "the observed ranges do not rise → check the worker that made it → fix the cause;",
    ),
    Ending(
        "all answers cut off",
        all_is_trained,
        said="! nearly all answers of all updates were cut off at model.max_new_tokens: raise it, or ask for shorter",
        recorded={"truncated_fraction": 1.0},
    ),
    Ending(
        "all rewards equal",
        all_is_trained,
        said="! all updates taught nothing: the samples of each prompt had equal rewards. Look at some with "
        "`echo-queue show`: the reward function may be constant, or the prompts too hard or too easy → mend that and "
        "name another run.name and run.dir; `echo-queue run run.toml` begins anew",
        recorded={"zero_variance_groups": 16},
    ),
    Ending(
        "a mixture",
        all_is_trained,
        said="sums: 0.25 → 0.25, 75.0% of the groups words: 1.00 → 1.00, 25.0% of the groups ✓ submitted",
        recorded={"components": {"sums": SUMS, "words": WORDS}},
    ),
    Ending(
        "ended by its limit",
        one_update_is_enough,
        said=f"! {PROMPTS - RULES.batch} prompts are not trained: learner.max_updates = 1 ended the run before them → "
        "with a higher one, or 0, `echo-queue run run.toml` goes on",
        max_updates=1,
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS, ids=[ending.cause for ending in ENDINGS])
def test_the_end_says_what_became_of_every_prompt_and_what_to_do(
    configure: Callable[..., Config],
    redis_servers: Callable[[str], RedisServer],
    run_name: str,
    tmp_path: Path,
    *,
    capsys: pytest.CaptureFixture[str],
    ending: Ending,
) -> None:
    run = {"name": run_name, "dir": tmp_path / "run"}
    limit = {"max_updates": ending.max_updates}
    server = redis_servers("valkey")
    config = configure(run=run, redis={"url": server.url}, learner=limit)
    with server.client() as client:
        harness = QueueHarness(Clients(client, run_name), prompts=PROMPTS)
        ending.live(harness)
    log = MetricsLog(config.run.dir / "metrics.jsonl")
    for version in range(1, 1 + (ending.max_updates or UPDATES)):
        log.write(update(version, **ending.recorded))
    capsys.readouterr()

    assert conclude(config, End.of(config), CONFIG) == ending.code
    said = words(capsys.readouterr().out)
    assert ending.said in said
    assert ("✗" in said, "!" in said) == (ending.code != DONE, ending.said.startswith("!"))

    code, last = learner_ends(config)
    assert code == ending.code
    assert ending.learner_said in last and bool(last) == bool(ending.learner_said)


def learner_ends(config: Config) -> tuple[int, str]:
    """Returns the exit code of a learner that finds the run finished, and what it prints last."""
    try:
        check_end(monitor(config))
    except EchoQueueError as error:
        return error.exit_code, words("".join(f"✗ {problem}" for problem in error.problems))
    return DONE, ""


def words(text: str) -> str:
    return " ".join(text.split())
