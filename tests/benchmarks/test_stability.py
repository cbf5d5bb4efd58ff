from pathlib import Path

import orjson

from benchmarks.rows import Rows
from benchmarks.stability import COLLAPSED_FOR, EVALUATE_EVERY, FRESH, Run, Setting, cells_of, stored, sweep, targets
from learner.diagnostics.guard import MEMORY, MOST_KL

SETTING = Setting("dppo", "copy", 2, 1, 0, 4, 3e-3, "warn")


def run_of(rewards: list[float], kl: float = 0.0, setting: Setting = SETTING) -> Run:
    updates = len(rewards) * EVALUATE_EVERY
    flat = (0.0,) * updates
    return Run(
        setting,
        tuple(rewards),
        ess_tokens=(1.0,) * updates,
        ess_samples=flat,
        second_moments=flat,
        grad_norms=flat,
        entropies=flat,
        kl_behaviours=(kl,) * updates,
        clip_fractions=flat,
        training_rewards=flat,
    )


def test_a_run_collapses_once_it_is_below_half_of_its_best_for_twenty_updates() -> None:
    low = COLLAPSED_FOR // EVALUATE_EVERY
    assert run_of([0.2, 0.8] + [0.3] * low).collapsed_at is None
    assert run_of([0.2, 0.8] + [0.3] * low + [0.5]).collapsed_at is None
    fallen = run_of([0.2, 0.8, *[0.3] * (low + 1)])
    assert fallen.collapsed_at == 3 * EVALUATE_EVERY
    assert fallen.declined and not fallen.good


def test_an_alarm_ten_updates_before_a_collapse_is_in_time() -> None:
    rewards = [0.8] * 6 + [0.1] * 6
    assert not run_of(rewards).warned_in_time
    warned = run_of(rewards, kl=2 * MOST_KL)
    assert warned.alarms[0] == MEMORY <= warned.collapsed_at - 10 and warned.warned_in_time  # type: ignore[operator]


def test_what_is_told_of_a_sweep_by_hand() -> None:
    fresh = run_of([0.5, 0.9, 0.9, 0.9], setting=SETTING._replace(preset=FRESH, s=0))
    late = run_of([0.1, 0.2, 0.9, 0.7], setting=SETTING._replace(s=32))
    cells = {cell.s: cell for cell in cells_of([fresh, late])}
    assert round(cells[32].behind or 0.0, 1) == 30.0
    assert cells[32].slower == 1.5
    assert targets([fresh, late], list(cells.values())) == {
        "S = 32: a preset within 3 points of S = 0": False,
        "S = 32: such a preset takes at most 1.3 times the updates to 0.8": False,
        "at most one good run in ten has an alarm": True,
    }


def test_a_preset_is_judged_by_its_worst_period_over_all_seeds() -> None:
    fresh = [run_of([0.5, 0.9, 0.9, 0.9], setting=SETTING._replace(preset=FRESH, s=0, seed=seed)) for seed in (0, 1)]
    near = [run_of([0.5, 0.9, 0.9, 0.9 - 0.03 * seed], setting=SETTING._replace(s=32, seed=seed)) for seed in (0, 1)]
    cells = cells_of([*fresh, *near])
    [cell] = [cell for cell in cells if cell.s == 32]
    assert (round(cell.behind or 0.0, 2), round(cell.behind_error or 0.0, 2)) == (0.5, 0.5)
    assert all(targets([*fresh, *near], cells).values())
    seldom = [run_of([0.5, 0.9, 0.8, 0.8], setting=one.setting._replace(kappa=32)) for one in near]
    runs = [*fresh, *near, *seldom]
    held = targets(runs, cells_of(runs))
    assert not held["S = 32: a preset within 3 points of S = 0"], "with the other period it is behind"


def test_an_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    path, later = tmp_path / "runs.jsonl", SETTING._replace(s=1)
    first = sweep([SETTING], path, Rows())
    written = path.read_bytes()
    both = sweep([SETTING, later], path, Rows())
    assert both[0] == first[0] and path.read_bytes().startswith(written)
    assert sweep([later, SETTING], path, Rows()) == both[::-1]
    older = orjson.loads(written)
    del older["kl_behaviours"]
    path.write_bytes(orjson.dumps(older))
    assert stored(path) == {}, "a run without a figure that is needed today is made again"
    fresh, *_, late = first[0].ess_tokens
    assert fresh > 1 - 1e-6 > late, "what the first update trains is fresh, and later data is two updates old"
