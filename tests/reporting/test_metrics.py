import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from echo_queue.reporting import metrics
from echo_queue.reporting.components import ComponentFigures
from echo_queue.reporting.metrics import MetricsLog, MetricsReader, read, summarise, warnings
from tests.synthetic import update


def test_a_torn_line_is_left_out_and_read_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).write(update(1))
    MetricsLog(path).write(update(2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    reader = MetricsReader(path)
    assert [found.version for found in reader.read()] == [1]
    path.write_bytes(whole)
    assert [found.version for found in reader.read()] == [1, 2]


def test_what_a_fork_abandoned_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for version in range(1, 8):
        log.write(update(version))
    log.write(update(5, lineage=2))
    assert [(found.lineage, found.version) for found in read(path)] == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5)]


def test_a_late_line_of_an_older_lineage_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for found in (update(1), update(2, lineage=2), update(2), update(3)):
        log.write(found)
    assert [(found.lineage, found.version) for found in read(path)] == [(1, 1), (2, 2)]


def test_a_line_costs_the_same_however_many_came_before(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log, reader = MetricsLog(path), MetricsReader(path)
    costs = []
    for first in (1, 301):
        for version in range(first, first + 300):
            log.write(update(version))
        costs.append(lines_run(reader.read))
    assert costs[1] < 1.5 * costs[0]


def lines_run(call: Callable[[], object]) -> int:
    """Calls, and returns how many lines of the module `metrics` ran."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Callable[..., object]:
        nonlocal count
        count += event == "line" and frame.f_code.co_filename == metrics.__file__
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count


def test_no_file_is_no_updates(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == ()
    assert summarise([]).updates == 0


def test_a_summary_adds_up() -> None:
    summary = summarise([update(version) for version in range(1, 41)])
    assert (summary.updates, summary.groups, summary.samples, summary.tokens) == (40, 640, 10_240, 120_000)
    assert summary.lags == {0: 160, 1: 480}
    assert (summary.mean_lag, summary.max_lag, summary.sent_back) == (0.75, 1, 2)
    assert summary.idle_share == pytest.approx(0.125)
    assert summary.tokens_per_s == pytest.approx(3_750)
    assert summary.reward_first < 0.25
    assert summary.reward_last > 0.9


def test_without_a_new_line_nothing_is_read_or_summed_again(tmp_path: Path) -> None:
    """The live view draws several times a second, also of a run with a million prompts."""
    path = tmp_path / "metrics.jsonl"
    MetricsLog(path).write(update(1))
    reader = MetricsReader(path)
    first = reader.read()
    assert reader.read() is first
    MetricsLog(path).write(update(2))
    assert [found.version for found in reader.read()] == [1, 2]


def test_rewards_are_means_of_updates_and_a_small_last_one_weighs_little() -> None:
    updates = [update(version, reward_mean=0.5) for version in range(1, 7)]
    alone = update(7, lineage=2, reward_mean=0.0, groups=1, samples=16)
    continued = summarise([*updates, alone])
    assert continued.reward_updates == 4
    assert continued.reward_first == 0.5
    assert continued.reward_last == pytest.approx(0.5 * 3 * 256 / (3 * 256 + 16))
    assert summarise(updates * 40).reward_updates == 10
    assert (summarise([]).reward_updates, summarise(updates[:1]).reward_updates) == (0, 1)


def test_a_run_that_is_over_is_warned_of_however_short_it_was() -> None:
    flat = [update(version, zero_variance_groups=16) for version in range(1, 7)]
    assert not warnings(summarise(flat))
    assert warnings(summarise(flat), over=True)[0].startswith("all updates taught nothing")
    assert not warnings(summarise([update(1), *flat]), over=True)
    assert not warnings(summarise([]), over=True)


def test_answers_that_are_cut_off_are_told_with_what_to_do() -> None:
    cut = [update(version, truncated_fraction=0.96) for version in range(2, 10)]
    [told] = warnings(summarise([update(1), *cut]))
    assert told.startswith("nearly all answers of the last 8 updates were cut off at model.max_new_tokens: raise it")
    assert not warnings(summarise(cut[1:]))
    assert not warnings(summarise([*cut, update(10, truncated_fraction=0.5)]), over=True)
    both = [update(version, truncated_fraction=1.0, zero_variance_groups=16) for version in (1, 2)]
    assert [sentence.partition(" updates ")[0] for sentence in warnings(summarise(both), over=True)] == [
        "all",
        "nearly all answers of all",
    ]


def component(groups: int = 4, reward: float = 0.5, *, flat: bool = False, cut: float = 0.0) -> ComponentFigures:
    zero = groups if flat else 0
    return ComponentFigures(groups, 16 * groups, 160 * groups, reward, 10.0, cut, zero, {"right": reward})


def test_what_is_said_of_components_is_written_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    written = update(1, components={"math": component(), "words": component(2)})
    MetricsLog(path).write(written)
    assert read(path) == (written,)


def test_a_component_is_summed_up_over_the_updates_that_trained_some_of_it() -> None:
    updates = [update(version, components={"math": component(reward=version / 40)}) for version in range(1, 41)]
    updates[9:20] = [
        update(version, components={"words": component(groups=1, reward=0.1 * version)}) for version in range(10, 21)
    ]
    math, words = summarise(updates).components.values()
    assert (math.updates, math.groups, math.samples, math.tokens) == (29, 116, 1_856, 18_560)
    assert (words.updates, words.groups) == (11, 11)
    assert (math.share, words.share) == (116 / 127, 11 / 127)
    assert (math.reward_updates, words.reward_updates) == (5, 5)
    assert math.reward_first == pytest.approx(3 / 40) and math.reward_last == pytest.approx(38 / 40)
    assert words.reward_first == pytest.approx(1.2) and words.reward_last == pytest.approx(1.8)
    assert words.rewards_last == {"right": pytest.approx(1.8)}
    assert math.length_mean == 10.0
    assert summarise([update(1)]).components == {}


def test_one_component_that_teaches_nothing_or_is_cut_off_is_told_by_its_name() -> None:
    def warned(groups: int, *, over: bool = False, **fields: object) -> tuple[str, ...]:
        first = update(1, components={"words": component(groups)})
        later = [
            update(version, components={"math": component(), "words": component(groups, **fields)})  # type: ignore[arg-type]
            for version in range(2, 18)
        ]
        return warnings(summarise([first, *later]), over=over)

    [flat] = warned(4, flat=True)
    assert flat.startswith("the last 64 groups of component words taught nothing: ")
    [cut] = warned(4, cut=0.96)
    assert cut.startswith("nearly all answers of the last 64 groups of component words were cut off at its max_new_tok")
    assert not warned(3, flat=True), "48 groups say too little"
    assert not warned(3, flat=True, over=True), "one of its groups taught something"
    everything = [update(version, components={"words": component(flat=True)}) for version in (1, 2)]
    [told] = warnings(summarise(everything), over=True)
    assert told.startswith("all groups of component words taught nothing")
    whole = [
        update(version, zero_variance_groups=16, components={"a": component(16, flat=True)}) for version in range(9)
    ]
    [told] = warnings(summarise(whole))
    assert told.startswith("all updates taught nothing"), "it is not said of each component again"
