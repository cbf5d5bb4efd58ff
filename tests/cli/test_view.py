from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from echo_queue.cli.inspect.live import view
from echo_queue.cli.inspect.live.view import RunView
from echo_queue.cli.inspect.live.watcher import RunWatcher
from echo_queue.cli.inspect.status import _document
from echo_queue.config import Config
from echo_queue.launch.supervisor import RoleState
from echo_queue.queue import ComponentStatus, EvaluationRound, Heartbeat, RunRules, Status, WorkerStatus
from echo_queue.queue.counts import short
from echo_queue.queue.dead_causes import DeadCause
from echo_queue.queue.generation_times import GenerationTimes
from echo_queue.records import Published, Version
from echo_queue.reporting.components import ComponentFigures
from echo_queue.reporting.metrics import FLAT_UPDATES, summarise
from tests.evaluation.answered import result_at
from tests.queue.clients import Clients
from tests.queue.queue_harness import QueueHarness
from tests.synthetic import update

UPDATES = [update(version, kappa=2) for version in range(1, 41)]
BEAT = Heartbeat(
    "transformers",
    Version(1, 40),
    "generating",
    5_123.0,
    3.2,
    671,
    pause_ms=34.0,
    store_bytes=12_000_000,
    peer_bytes=3_400_000_000,
    arrived_ms=1_230,
    pool="spot",
    machine="node-7",
    generation=GenerationTimes.of([8.0] * 98 + [60.0] * 2),
    scoring_s=1.5,
    unscored=12,
    judge_calls=1_234,
    judge_tokens=567_890,
)
STATUS = Status(
    learner=Version(1, 40),
    published=Published(Version(1, 39), "manifest", "digest"),
    rules=RunRules(s=4, batch=16),
    window=1.5,
    finished=False,
    submitted=2_560,
    backlog=1_152,
    tasks=32,
    retry=2,
    in_flight=20,
    ready=12,
    drained=16,
    replay=28,
    uncommitted=0,
    trained=1_344,
    dead=2,
    learner_silent_ms=300,
    counts={},
    workers=(WorkerStatus("worker-1", 400, BEAT), WorkerStatus("spot-7", 31_000, None)),
)
PICTURE = RunView(
    name="quickstart",
    phase="training",
    elapsed_s=187,
    s=4,
    summary=summarise(UPDATES),
    recent=summarise(UPDATES[-20:]),
    rewards=tuple(found.reward_mean for found in UPDATES),
    status=STATUS,
    trouble="",
    roles=(RoleState("services", True, 0, False), RoleState("worker-1", True, 2, False)),
    redis_cli="redis-cli -p 4000 --user monitor",
)


def drawn(picture: RunView, width: int = 100, *, coloured: bool = False) -> str:
    system: Any = "standard" if coloured else None
    console = Console(width=width, force_terminal=coloured, color_system=system, no_color=False)
    with console.capture() as capture:
        console.print(view.draw(picture))
    return capture.get()


def workers_of(picture: RunView) -> list[list[str]]:
    """The words of each row of the workers table and of the weights table."""
    rows = (line.strip("│ ").split() for line in drawn(picture).splitlines() if line.startswith("│  "))
    return [row for row in rows if row[0].startswith(("w", "spot")) and row[0] != "worker"]


def test_a_narrow_terminal_shows_the_panels_one_below_the_other_and_every_figure_whole() -> None:
    lines = drawn(PICTURE, width=53).splitlines()
    for words in (["queue of 2,560"], ["backlog", "1,152"], ["whole run: mean 0.75"], ["tokens/s", "3.8k"]):
        assert any(all(word in line for word in words) for line in lines), words
    assert max(map(len, lines)) <= 53


def test_a_narrow_terminal_shows_each_worker_by_its_whole_name() -> None:
    names = ["worker-2", "worker-9", "worker-10"]
    many = replace(STATUS, workers=tuple(WorkerStatus(name, 61_400, BEAT) for name in names))
    for width in (53, 60):
        lines = drawn(replace(PICTURE, status=many), width).splitlines()
        for name in names:
            assert sum(line.startswith(f"│  {name} ") for line in lines) == 2, "once in each table"
        assert not any(line.startswith("(") for line in lines), "a line goes on below its first word"


def test_a_picture_shows_what_one_asks_first() -> None:
    text = drawn(PICTURE)
    assert "pool spot: 1 worker on 1 machine, 3.2 groups/s" in " ".join(text.split())
    assert "scoring takes 1.5 s a call, 12 samples wait for it" in " ".join(text.split())
    assert "judges were asked 1.2k times, 567.9k tokens" in " ".join(text.split())
    for fact in ("quickstart", "3:07", "1,152", "1,344", "S = 4", "mean 0.75", "5.1k", "gone"):
        assert fact in text
    assert "worker-1 restarted 2×" in text
    assert "redis-cli -p 4000 --user monitor" in text


def test_workers_stand_in_the_order_of_their_names_and_of_the_numbers_in_them(
    configure: Callable[..., Config],
) -> None:
    names = ("worker-10", "worker-2", "w1", "worker-1", "spot-7")
    status = replace(STATUS, workers=tuple(WorkerStatus(name, 400, BEAT) for name in names))
    ordered = ["spot-7", "w1", "worker-1", "worker-2", "worker-10"]
    assert [row[0] for row in workers_of(replace(PICTURE, status=status))] == 2 * ordered
    config = configure()
    document = _document(config, RunWatcher(config), status)
    assert [worker.name for worker in document.queue.workers] == ordered


def test_a_worker_that_has_left_has_no_row_while_its_tasks_wait_to_be_taken_back(queue: Clients) -> None:
    harness = QueueHarness(queue)
    queue.heartbeat("w1", Heartbeat("engine", Version(0, 0), "generating"))
    for worker in ("w1", "w2"):
        queue.release(worker, [task.id for task in harness.lease(1, worker)])
    queue.heartbeat("w2", Heartbeat("engine", Version(0, 0), "generating"))
    queue.leave("w1")
    both = replace(PICTURE, status=queue.status())
    assert {row[0] for row in workers_of(both)} == {"w2"}
    queue.leave("w2")
    nobody = replace(PICTURE, status=queue.status())
    assert nobody.status and [worker.held for worker in nobody.status.workers] == [1, 1]
    for text in (drawn(nobody), drawn(nobody, 60)):
        assert "─ workers" not in text and "─ weights" not in text and "gone" not in text
        assert "workers that left: 2 stopped" in text


def test_no_age_is_shown_where_none_is_known() -> None:
    """A worker may be heard of for the first time between the two questions that a status asks."""
    status = replace(STATUS, workers=(WorkerStatus("worker-1", -1, BEAT), WorkerStatus("worker-2", 0, BEAT)))
    first, second, *_ = workers_of(replace(PICTURE, status=status))
    assert first[-1] == "–" and second[-3:] == ["0.0", "s", "ago"]


def test_weights_without_a_worker_that_is_heard_have_no_box() -> None:
    silent = replace(STATUS, workers=(WorkerStatus("spot-7", 31_000, None),))
    text = drawn(replace(PICTURE, status=silent))
    assert "31.0 s ago" in text and "gone" in text and "─ weights" not in text


def test_a_worker_names_its_lineage_only_where_it_is_not_the_learners() -> None:
    behind = replace(BEAT, version=Version(1, 38))
    learner = replace(STATUS, learner=Version(2, 40), learner_silent_ms=300)
    workers = (WorkerStatus("worker-1", 0, replace(BEAT, version=Version(2, 40))), WorkerStatus("worker-2", 0, behind))
    rows = workers_of(replace(PICTURE, status=replace(learner, workers=workers)))
    assert [row[2] for row in rows[:2]] == ["40", "1.38"]
    nobody = replace(learner, learner_silent_ms=-1, workers=workers)
    assert [row[2] for row in workers_of(replace(PICTURE, status=nobody))[:2]] == ["2.40", "1.38"]


GREEN, YELLOW, RED = (f"\x1b[1;{number}m" for number in (32, 33, 31))


@pytest.mark.parametrize(
    ("phase", "over", "dead", "colour"),
    [
        ("training", False, 2, GREEN),
        ("finished", True, 0, GREEN),
        ("finished", True, 2, RED),
        ("ended", True, 0, YELLOW),
        ("ended", True, 2, RED),
        ("stopped: no learner or worker lives", False, 2, YELLOW),
        ("no answer", False, 0, YELLOW),
        ("failed", True, 0, RED),
    ],
)
def test_what_did_not_go_well_is_not_green(phase: str, over: bool, dead: int, colour: str) -> None:
    picture = replace(PICTURE, phase=phase, over=over, status=replace(STATUS, dead=dead))
    assert f"{colour}{phase}" in drawn(picture, coloured=True)


def test_the_last_picture_of_a_run_shows_its_end_and_not_who_was_heard_a_moment_before() -> None:
    workers = tuple(WorkerStatus(name, 400, BEAT) for name in ("worker-1", "worker-9"))
    roles = (*PICTURE.roles, RoleState("learner", False, 0, True))
    running = replace(PICTURE, status=replace(STATUS, workers=workers), roles=roles, held_up=("no worker lives",))
    rows = {row[0]: row[1] for row in reversed(workers_of(running.ended({"worker-1"})))}
    assert rows == {"worker-1": "gone", "worker-9": "generating"}
    text = drawn(running.ended({"worker-1"}))
    assert "✓ learner" in text and "services" not in text, "they end with the command"
    assert "held up" not in text and "whole run:" in text
    assert replace(running, status=None).ended(()).status is None


def test_a_death_is_told_in_one_sentence_of_single_spaces() -> None:
    died = replace(PICTURE, dead=(DeadCause("KeyError: 'largest' (rewards.py, line 7)", 4, "mine/0/13"),))
    told = "4 prompts died: KeyError: 'largest' (rewards.py, line 7) (for example mine/0/13)"
    assert told in drawn(died) and told in view.line(died)


def test_a_run_that_stands_still_says_who_holds_it_up() -> None:
    stalled = replace(PICTURE, held_up=("w1 holds 3 tasks", "the learner waits"))
    assert "held up: w1 holds 3 tasks" in drawn(stalled)
    assert "held up: w1 holds 3 tasks; the learner waits" in view.line(stalled)


def test_workers_that_left_are_shown_by_cause() -> None:
    left = replace(PICTURE, status=replace(STATUS, counts={"left_rest": 1, "left_preempted": 1_200}))
    for text in (drawn(left), view.line(left)):
        assert "workers that left: 1,200 preempted, 1 rest" in text


def test_bad_groups_are_shown_by_cause() -> None:
    counts = {"bad_reward": 3, "bad_tokens": 1_200, "buried": 1_203, "missing": 1}
    spoiled = replace(PICTURE, status=replace(STATUS, counts=counts))
    for text in (drawn(spoiled), view.line(spoiled)):
        assert "bad groups: tokens 1,200, reward 3" in text
        assert "1 group gone from the store and generated again" in text
    assert "bad groups" not in drawn(PICTURE) + view.line(PICTURE)


def test_what_became_of_partials_is_shown_in_tokens() -> None:
    moved = replace(PICTURE, status=replace(STATUS, counts={"tokens_continued": 12_345, "bad_partial": 1}))
    for text in (drawn(moved), view.line(moved)):
        assert "partial rollouts: 12,345 tokens continued, 1 bad" in text
    assert "partials" not in drawn(PICTURE) + view.line(PICTURE)


def test_a_picture_shows_where_weights_came_from_and_how_long_they_took() -> None:
    text = drawn(replace(PICTURE, recent=summarise([update(40, t_bcast_s=2.5)])))
    for fact in ("12.0M", "3.4G", "1.23 s", "34 ms", "everywhere after 2.50 s"):
        assert fact in text
    line = view.line(replace(PICTURE, recent=summarise([update(40, t_bcast_s=2.5)])))
    assert "weights 12.0MB from the store, 3.4GB from peers" in line
    assert "weights everywhere after 2.50 s" in line


def test_a_version_that_never_arrived_has_no_time() -> None:
    unknown = replace(STATUS, workers=(WorkerStatus("worker-1", 400, replace(BEAT, arrived_ms=-1)),))
    assert "–" in drawn(replace(PICTURE, status=unknown)).split("served after")[1].split("ms")[0]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_picture_keeps_within_the_terminal(width: int) -> None:
    text = drawn(PICTURE, width)
    assert max(map(len, text.splitlines())) <= width
    learner = ("version 40", "published 39, κ = 2", "idle", "update", "tokens/s", "sent back", "window")
    whole = " ".join(text.split())
    for row in (*learner, "in hand", "trained", "dead", "queue of 2,560", "lag · S = 4", "whole run: mean 0.75"):
        assert row in whole, f"{row} is cut off at {width} columns"


@pytest.mark.parametrize("width", [80, 160])
def test_the_line_to_copy_is_one_command_in_a_shell(width: int) -> None:
    command = "REDISCLI_AUTH=$(cat /a/path/of/some/length/services/monitor.password) redis-cli --user monitor -p 46633"
    told = drawn(replace(PICTURE, redis_cli=command), width).partition("look yourself:\n")[2]
    assert " ".join(told.replace("\\\n", " ").split()) == command


@pytest.mark.parametrize("s", [0, 1, 8, 30])
def test_every_bound_has_its_histogram(s: int) -> None:
    assert f"S = {s}" in drawn(replace(PICTURE, s=s))


def test_what_is_trained_counts_before_a_checkpoint_holds_it() -> None:
    """A newcomer's first checkpoint comes after many updates, and is no reason to see that nothing is trained."""
    young = replace(STATUS, trained=0, drained=160, uncommitted=144, submitted=2_560)
    told = " ".join(drawn(replace(PICTURE, status=young)).split())
    assert "trained 144 " in told and "in hand 16 " in told and "144 not saved yet" in told
    line = view.line(replace(PICTURE, status=young))
    assert "in hand 16  trained 144  " in line and "not saved yet 144" in line
    assert "not saved" not in drawn(PICTURE) + view.line(PICTURE)


def test_a_worker_that_starts_serves_the_base_model() -> None:
    starting = replace(STATUS, workers=(WorkerStatus("worker-1", 400, replace(BEAT, version=Version(0, 0))),))
    told = drawn(replace(PICTURE, status=starting))
    assert " base " in told and "0.0 " not in told.split("heard")[1].split("─")[0].replace("0.4 s", "")


def test_a_run_that_has_not_begun_has_a_picture() -> None:
    empty = replace(
        PICTURE, summary=summarise([]), recent=summarise([]), rewards=(), status=None, trouble="redis: away"
    )
    assert "not trained yet" in drawn(empty)
    assert "redis: away" in drawn(empty)
    assert "0.00 s" not in drawn(empty) and "0%" not in drawn(empty) and "mean" not in drawn(empty)
    assert view.line(empty).startswith("3:07  training")


def test_a_queue_without_learner_and_prompts_has_no_figures() -> None:
    nobody = replace(STATUS, learner_silent_ms=-1, submitted=0, workers=(), learner=Version(0, 0))
    unheard = replace(PICTURE, phase="making the base model", summary=summarise([]), rewards=(), status=nobody)
    assert view.line(unheard) == "3:07  making the base model  worker-1 restarted 2×"
    assert "lineage" not in drawn(unheard)
    sent = view.line(replace(unheard, status=replace(nobody, submitted=2_560)))
    assert "backlog 1,152" in sent and "version" not in sent


def test_a_line_says_the_same() -> None:
    line = view.line(PICTURE)
    depths = [int(line.split(f"  {name} ")[1].split()[0].replace(",", "")) for name in view._depths(STATUS)]
    assert sum(depths) == STATUS.submitted
    for fact in (
        "version 40",
        "backlog 1,152",
        "tasks 34",
        "dead 2",
        "workers 1",
        "worker-1 restarted 2×",
        "largest 1",
    ):
        assert fact in line
    assert "\n" not in line


def test_sparks_and_bars_are_as_long_as_asked() -> None:
    assert view.spark([0.0, 0.5, 1.0], 3) == "▁▅█"
    assert view.spark([0.0] * 100, 10) == "▁" * 10
    assert view.bar(0.5, 8) == "████    "
    assert view.bar(2.0, 4) == "████"
    assert (short(812), short(9_200), short(1_400_000)) == ("812", "9.2k", "1.4M")
    assert (view.clock(42), view.clock(187), view.clock(18_131)) == ("0:42", "3:07", "5:02:11")


def test_updates_that_teach_nothing_are_named_on_the_screen_and_in_the_line() -> None:
    flat = [replace(one, zero_variance_groups=one.groups) for one in UPDATES[-FLAT_UPDATES:]]
    late = replace(PICTURE, summary=summarise([*UPDATES[:-FLAT_UPDATES], *flat]))
    told = f"the last {FLAT_UPDATES} updates taught nothing"
    assert told in view.line(late)
    assert told in drawn(late, 400)
    assert "taught nothing" not in view.line(PICTURE)
    assert "all updates taught nothing" in view.line(replace(PICTURE, summary=summarise(flat)))
    few = replace(PICTURE, summary=summarise(flat[:1]))
    assert "taught nothing" not in view.line(few), "it has hardly begun"
    assert "all updates taught nothing" in view.line(replace(few, over=True)), "nothing more will come"
    mixed = summarise([*UPDATES[:3], *flat[:3]])
    assert "taught nothing" not in view.line(replace(PICTURE, summary=mixed, over=True))


def test_each_figure_says_of_which_updates_it_is() -> None:
    waits = [replace(one, wait_s=9.0) for one in UPDATES[:20]] + UPDATES[20:]
    running = replace(PICTURE, summary=summarise(waits), recent=summarise(waits[-20:]))
    over = replace(running, over=True)
    assert "0.21 → 0.91 (means of 5 updates)" in drawn(running, 80)
    assert "last 20 updates: lag 0.75 (largest 1)  idle 13%" in view.line(running)
    assert "whole run: lag 0.75 (largest 1)  idle 87%" in view.line(over)
    for picture, span, idle in ((running, "last 20 updates:", "13%"), (over, "whole run:", "87%")):
        text = drawn(picture, 80)
        assert span in text and idle in text and "whole run: mean 0.75" in text
    assert "reward 0.17" in view.line(replace(PICTURE, summary=summarise(UPDATES[:1]))), "one update has no course"


def test_the_picture_fits_80_columns() -> None:
    names = ("services", "init-model", "learner", "worker-1", "worker-2", "worker-3", "celery", "submit")
    roles = tuple(RoleState(name, True, number, False) for number, name in enumerate(names))
    phase, detail = "making the base model", "663,936 parameters, 568 tokens; the first prompt has 8 of them"
    lines = drawn(replace(PICTURE, roles=roles, phase=phase, detail=detail), 80).splitlines()
    assert any(line.strip() == detail for line in lines) and any(phase in line for line in lines)
    assert not any(line.rstrip().endswith("●") for line in lines), "a mark stands beside its name"
    for number, name in enumerate(names[1:], 1):
        assert any(f"● {name} restarted {number}×" in line for line in lines)
    assert all(" ─" in line or "──" in line for line in lines if "lag ·" in line)
    assert any("lag · S = 4 ─" in line for line in lines)


def test_a_round_under_way_says_how_far_it_is_and_afterwards_the_last_figures_are_shown() -> None:
    results = (result_at(20, mean=0.71, low=0.65, high=0.77), result_at(20, name="sums", mean=0.5, low=None, high=None))
    under_way = EvaluationRound(3, Version(1, 40), ("held-out", "sums"), 200, 70, 10, 120, 1)
    between = replace(PICTURE, evaluations=results)
    during = replace(between, status=replace(STATUS, evaluation=under_way))
    for shown in (drawn, view.line):
        told = shown(during)
        assert "held-out, sums at 1.40: 120 of 200 prompts answered, 1 keeper" in told and "0.71" not in told
        told = shown(between)
        assert "held-out at 1.20: 0.71 [0.65, 0.77]" in told and "sums at 1.20: 0.50" in told
    assert view.evaluations(PICTURE) == []


def mixed(math: float, words: float) -> dict[str, ComponentFigures]:
    return {
        "math": ComponentFigures(12, 192, 1_920, math, 10.0, 0.25, 2, {"right": math}),
        "words": ComponentFigures(4, 64, 640, words, 10.0, 0.0, 0, {"form": words}),
    }


MIXTURE = replace(
    PICTURE,
    summary=summarise([update(version, components=mixed(version / 40, 0.5)) for version in range(1, 41)]),
    status=replace(
        STATUS,
        components=(
            ComponentStatus("math", 6.0, 481, 600, 0),
            ComponentStatus("words", 2.0, 160, 552, 1_200),
            ComponentStatus("number-sorting", 2.0, 0, 0, 0),
        ),
    ),
)


@pytest.mark.parametrize("width", [53, 80, 100])
def test_each_component_of_a_mixture_has_its_shares_its_rewards_and_what_is_left(width: int) -> None:
    text = drawn(MIXTURE, width)
    assert max(map(len, text.splitlines())) <= width
    if width >= 80:
        rows = [line.strip("│ ").split() for line in text[text.index("─ mixture") :].splitlines()]
        assert ["math", "60.0%", "75.0%", "75.0%", "0.07", "→", "0.95", "600", "0"] in rows
        assert ["words", "20.0%", "25.0%", "25.0%", "0.50", "→", "0.50", "552", "1,200"] in rows
    assert MIXTURE.status and all(f"│  {one.name} " in text for one in MIXTURE.status.components), "whole names"
    assert "─ mixture" not in drawn(PICTURE, width)
    whole = tuple(replace(one, missing=0) for one in MIXTURE.status.components)
    assert "to come" not in drawn(replace(MIXTURE, status=replace(MIXTURE.status, components=whole)), width)


def test_a_line_names_the_components_and_what_is_left_of_each() -> None:
    line = view.line(MIXTURE)
    assert "math 0.07 → 0.95, 75.0% of the groups, backlog 600  " in line
    assert "words 0.50 → 0.50, 25.0% of the groups, backlog 552 and 1,200 to come  " in line
    assert "number-sorting backlog 0  " in line


def test_what_is_not_known_of_a_component_is_not_shown_as_0() -> None:
    nobody = replace(MIXTURE, status=None)
    rows = [line.strip("│ ").split() for line in drawn(nobody).splitlines()]
    assert ["math", "–", "–", "75.0%", "0.07", "→", "0.95", "–"] in rows
    young = replace(MIXTURE, summary=summarise([]), rewards=())
    assert young.status
    none_yet = tuple(replace(one, admitted=0) for one in young.status.components)
    rows = [
        line.split() for line in drawn(replace(young, status=replace(young.status, components=none_yet))).splitlines()
    ]
    assert ["│", "math", "60.0%", "–", "–", "–", "600", "0", "│"] in rows


def test_a_mixture_without_learner_and_prompts_has_no_figures() -> None:
    assert MIXTURE.status
    nobody = replace(MIXTURE.status, learner_silent_ms=-1, submitted=0, workers=(), learner=Version(0, 0))
    unheard = replace(MIXTURE, phase="making the base model", summary=summarise([]), rewards=(), status=nobody)
    assert view.line(unheard) == "3:07  making the base model  worker-1 restarted 2×"
    assert "─ mixture" not in drawn(unheard)


def test_a_component_that_teaches_nothing_is_named() -> None:
    flat = {name: replace(one, zero_variance_groups=one.groups) for name, one in mixed(1.0, 0.5).items()}
    updates = [update(1, components=mixed(0.5, 0.5))]
    updates += [update(version, components=mixed(0.5, 0.5) | {"math": flat["math"]}) for version in range(2, 9)]
    for shown in (lambda picture: drawn(picture, 400), view.line):
        assert "the last 84 groups of component math taught nothing" in shown(
            replace(MIXTURE, summary=summarise(updates))
        )
