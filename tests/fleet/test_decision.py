"""A controller's decisions, case by case."""

from dataclasses import replace
from typing import Any

from echo_queue.fleet.decision import decide
from echo_queue.fleet.state import (
    Decision,
    Dismissal,
    End,
    Ending,
    Launch,
    LearnerState,
    Leave,
    Limits,
    Machine,
    Memory,
    Offer,
    Order,
    Rest,
    Setback,
    Start,
    State,
    Worker,
)

CHEAP = Offer("cheap", 1.0, 1.0, 8, 100.0)
DEAR = Offer("dear", 3.0, 1.0, 8, 100.0)
LIMITS = Limits(usd_per_hour=20.0, machines=12, calm_s=600.0)
NOW_S = 10_000.0


def fleet(needed: float, *names: str, memory: Memory | None = None, heard: Any = None, **more: Any) -> State:
    """A fleet of machines with workers that were just heard, or of which only those of `heard` were."""
    workers = tuple(Worker(name, 0.0, serves=True) for name in (names if heard is None else heard))
    machines = tuple(Machine(name, name.partition("-")[0]) for name in names)
    settled = memory or Memory(serving=tuple(sorted(names)))
    return State(machines, workers, needed, made=needed, starved=False, memory=settled, **more)


def decided(state: State, *offers: Offer, now_s: float = NOW_S, limits: Limits = LIMITS) -> Decision:
    return decide(state, offers or (CHEAP, DEAR), limits, now_s)


def of(decision: Decision, kind: type[Order]) -> list[str]:
    """Pools of the starts, or names of the other orders of this kind."""
    orders = [order for order in decision.orders if isinstance(order, kind)]
    return [order.pool if isinstance(order, Start) else order.name for order in orders]


def test_missing_supply_is_started_at_once_where_it_is_cheapest() -> None:
    decision = decided(fleet(3.0, "cheap-1"))
    assert of(decision, Start) == ["cheap", "cheap"]
    assert len({order.name for order in decision.orders if isinstance(order, Start)}) == 2
    assert decision.wanted == {"cheap": 3}
    assert {launch.asked_s for launch in decision.memory.launches.values()} == {NOW_S}


def test_machines_that_launch_count_until_their_deadline_and_then_set_their_pool_back() -> None:
    launched = Memory(launches={"cheap-1": Launch("cheap", NOW_S)})
    for later_s in (10.0, 200.0):
        assert decided(fleet(1.0, memory=launched), now_s=NOW_S + later_s).orders == ()
    late = decided(fleet(1.0, memory=launched), now_s=NOW_S + 300.0)
    assert (of(late, End), of(late, Start)) == (["cheap-1"], ["dear"])
    assert late.memory.setbacks["cheap"].failures == 1


def test_a_pool_that_refuses_is_asked_again_only_after_a_pause_that_doubles() -> None:
    memory = Memory(launches={"cheap-1": Launch("cheap", NOW_S)}, setbacks={"cheap": Setback(2, NOW_S - 1)})
    refused = decided(fleet(1.0, memory=memory, refused=frozenset(["cheap-1"])))
    assert (of(refused, Start), of(refused, End)) == (["dear"], [])
    assert refused.memory.setbacks["cheap"] == Setback(3, NOW_S + 4 * LIMITS.setback_s)
    alone = fleet(1.0, memory=Memory(setbacks={"cheap": Setback(1, NOW_S + 5)}))
    assert decided(alone, CHEAP).orders == ()
    assert of(decided(alone, CHEAP, now_s=NOW_S + 6), Start) == ["cheap"]


def test_a_machine_that_was_listed_and_vanishes_while_it_boots_is_replaced_at_once() -> None:
    launched = Memory(launches={"cheap-1": Launch("cheap", NOW_S, confirmed=True)})
    unseen = decided(fleet(1.0, memory=launched), now_s=NOW_S + 5)
    assert unseen.orders == (), "a place may list late"
    listed = decided(fleet(1.0, "cheap-1", memory=unseen.memory, heard=()), now_s=NOW_S + 10)
    assert listed.orders == () and listed.memory.launches["cheap-1"].listed
    gone = decided(fleet(1.0, memory=listed.memory), now_s=NOW_S + 20)
    assert (of(gone, Start), of(gone, End)) == (["cheap"], ["cheap-1"])


def test_a_pool_whose_machines_vanish_again_and_again_while_they_boot_is_left_alone_for_a_while() -> None:
    before = Memory(launches={"cheap-1": Launch("cheap", NOW_S, True, True)}, setbacks={"cheap": Setback(1, NOW_S)})
    again = decided(fleet(1.0, memory=before), now_s=NOW_S + 20)
    assert of(again, Start) == ["dear"]
    assert again.memory.setbacks["cheap"] == Setback(2, NOW_S + 20 + 2 * LIMITS.setback_s)


SILENT = LearnerState(heard=False)


def test_a_spent_budget_dismisses_whatever_is_known_of_the_learner_and_though_the_fleet_is_paused() -> None:
    spent = replace(LIMITS, usd=5.0)
    memory = Memory(serving=("cheap-1", "cheap-2"), spent_usd=6.0, counted_s=NOW_S)
    state = fleet(2.0, "cheap-1", "cheap-2", memory=memory)
    quiet = tuple(replace(one, silent_s=200.0) for one in state.workers)
    for known in (
        replace(state, hold="no learner is heard", learner=SILENT),
        replace(state, hold="no set of these pools"),
        replace(state, paused=True),
        replace(state, workers=quiet),
    ):
        decision = decided(known, limits=spent)
        assert decision.why == "the budget is spent"
        assert set(decision.memory.dismissals) == {"cheap-1", "cheap-2"}


def test_a_price_above_the_cap_dismisses_though_the_learner_is_silent() -> None:
    state = fleet(3.0, "cheap-1", "cheap-2", "cheap-3", hold="no learner is heard", learner=SILENT)
    decision = decided(state, replace(CHEAP, usd_per_hour=9.0))
    assert (of(decision, Leave), decision.why) == (["cheap-1"], "the machines cost more than the cap")


def over_time(state: State, seconds: float, *, step_s: float = 10.0, limits: Limits = LIMITS) -> Decision:
    """Decides every `step_s` for so long, with the machines and the learner as they are."""
    decision = decided(state, limits=limits)
    for step in range(1, int(seconds / step_s) + 1):
        state = replace(state, memory=decision.memory)
        decision = decided(state, now_s=NOW_S + step * step_s, limits=limits)
    return decision


def test_a_learner_that_stays_silent_has_its_fleet_dismissed_and_one_that_is_back_gets_it_again() -> None:
    state = fleet(2.0, "cheap-1", "cheap-2", "dear-3", learner=SILENT, hold="no learner is heard", heard=["cheap-1"])
    assert over_time(state, LIMITS.stall_s - 20).memory.dismissals == {}
    ended = over_time(state, LIMITS.stall_s + 10)
    assert "no learner has been heard for 15 min" in ended.why and ended.memory.why == ended.why
    assert of(ended, Rest) == ["cheap-1"] and {"cheap-2", "dear-3"} <= set(of(ended, End))
    back = fleet(2.0, memory=replace(ended.memory, dismissals={}), learner=LearnerState())
    assert of(decided(back, now_s=NOW_S + 1000), Start) == ["cheap", "cheap"]


def test_what_nobody_saw_is_no_silence_of_the_learner() -> None:
    """Redis, or every controller, was away for an hour; right after it the learner has had no time to be heard."""
    state = fleet(1.0, "cheap-1", learner=SILENT, hold="no learner is heard")
    first = decided(state)
    later = decided(replace(state, memory=first.memory), now_s=NOW_S + 3600)
    assert later.memory.silent_s <= 60 and later.orders == ()


def test_a_learner_that_is_heard_and_makes_no_progress_is_given_four_times_as_long_and_three_updates() -> None:
    stuck = LearnerState(figures=(10, 12, 12, 500), t_train_s=100.0)
    state = fleet(1.0, "cheap-1", learner=stuck)
    assert over_time(state, 4 * LIMITS.stall_s - 20, step_s=20).memory.dismissals == {}
    ended = over_time(state, 4 * LIMITS.stall_s + 20, step_s=20)
    assert "has made no progress for 60 min" in ended.why and of(ended, Rest) == ["cheap-1"]
    long = replace(state, learner=replace(stuck, t_train_s=2000.0))
    assert over_time(long, 5900, step_s=20).memory.dismissals == {}, "a long update"
    moves = replace(state, memory=ended.memory, learner=replace(stuck, figures=(10, 13, 12, 500)))
    assert decided(moves, now_s=NOW_S + 8000).memory.still_s == 0
    lacking = replace(state, learner=replace(stuck, lacks_groups=True))
    assert over_time(lacking, 8000, step_s=20).orders == (), "it stands still for want of workers"


def test_a_learner_that_dies_again_and_again_at_the_same_update_makes_no_progress() -> None:
    state, decision = fleet(1.0, "cheap-1"), None
    for life in range(16):
        learner = LearnerState(heard=life % 2 == 0, figures=(10, 12 - life % 2, 12, 500))
        state = replace(state, learner=learner, hold="" if learner.heard else "no learner is heard")
        for step in range(30):
            decision = decided(state, now_s=NOW_S + life * 300 + step * 10)
            state = replace(state, memory=decision.memory)
    assert decision and "has made no progress" in decision.why


def test_a_finished_run_needs_no_machine_though_workers_fell_silent() -> None:
    state = fleet(3.0, "cheap-1", "cheap-2", over=True)
    quiet = replace(state, workers=tuple(replace(one, silent_s=200.0) for one in state.workers))
    assert set(decided(quiet).memory.dismissals) == {"cheap-1", "cheap-2"}


def test_a_dismissal_goes_on_while_the_learner_is_silent() -> None:
    memory = Memory(dismissals={"cheap-2": Dismissal(Ending.leave, NOW_S - 60)}, serving=("cheap-1",))
    state = fleet(1.0, "cheap-1", "cheap-2", memory=memory, learner=SILENT, hold="no learner is heard")
    assert of(decided(state), End) == ["cheap-2"]


def test_a_cheaper_fleet_is_taken_only_after_a_while_and_its_machines_come_first() -> None:
    state = fleet(2.0, "dear-1", "dear-2")
    first = decided(state)
    assert (first.orders, first.memory.saving_s) == ((), NOW_S)
    later = decided(replace(state, memory=first.memory), now_s=NOW_S + 600)
    assert (of(later, Start), of(later, Rest)) == (["cheap", "cheap"], []), "none goes before others serve"
    come = fleet(2.0, "dear-1", "dear-2", "cheap-1", "cheap-2", memory=replace(later.memory, launches={}))
    assert of(decided(come, now_s=NOW_S + 700), Rest) == ["dear-1", "dear-2"]


def test_a_small_saving_is_not_worth_a_swap() -> None:
    same = replace(DEAR, usd_per_hour=1.01)
    state = fleet(2.0, "dear-1", "dear-2", memory=Memory(serving=("dear-1", "dear-2"), saving_s=0.0))
    assert decided(state, CHEAP, same).orders == ()


def test_a_dismissed_machine_rests_then_leaves_and_is_ended_once_its_worker_has_left() -> None:
    def at(stage: Ending, since_s: float, *heard: str) -> Decision:
        memory = Memory(dismissals={"cheap-2": Dismissal(stage, since_s)}, serving=("cheap-1",))
        return decided(fleet(1.0, "cheap-1", "cheap-2", memory=memory, heard=("cheap-1", *heard)))

    assert of(at(Ending.rest, NOW_S - 30, "cheap-2"), Rest) == ["cheap-2"]
    assert of(at(Ending.rest, NOW_S - 60, "cheap-2"), Leave) == ["cheap-2"]
    assert of(at(Ending.rest, NOW_S - 30), End) == ["cheap-2"]
    assert of(at(Ending.leave, NOW_S - 60, "cheap-2"), End) == ["cheap-2"], "it did not obey"


def test_a_machine_that_is_silent_is_replaced_and_ended_only_when_it_counts_as_lost() -> None:
    names = ("cheap-1", "cheap-2", "cheap-3")
    silent = fleet(3.0, *names, heard=names[:2])
    replaced = decided(silent)
    assert (of(replaced, Start), of(replaced, End)) == (["cheap"], [])
    back = decided(fleet(3.0, *names, memory=replaced.memory), now_s=NOW_S + 60)
    assert (back.orders, back.memory.quiet) == ((), {})
    lost = decided(replace(silent, memory=replaced.memory), now_s=NOW_S + LIMITS.lost_s + 1)
    assert "cheap-3" in of(lost, End)


def test_nothing_is_ordered_where_most_machines_fall_silent_at_once() -> None:
    names = ("cheap-1", "cheap-2", "cheap-3")
    state = fleet(3.0, *names)
    silent = replace(state, workers=tuple(replace(one, silent_s=200.0) for one in state.workers))
    assert decided(silent).orders == ()


def test_no_start_leads_beyond_a_cap_and_what_is_leaving_counts() -> None:
    leaving = Memory(dismissals={"dear-1": Dismissal(Ending.leave, NOW_S)})
    state = fleet(9.0, "dear-1", memory=leaving)
    assert of(decided(state, limits=replace(LIMITS, usd_per_hour=5.0)), Start) == ["cheap", "cheap"]
    assert of(decided(state, limits=replace(LIMITS, machines=4)), Start) == ["cheap"] * 3


def test_a_price_above_the_cap_dismisses_at_once() -> None:
    decision = decided(fleet(3.0, "cheap-1", "cheap-2", "cheap-3"), replace(CHEAP, usd_per_hour=9.0))
    assert of(decision, Leave) == ["cheap-1"]


def test_a_fleet_at_the_cap_that_lacks_next_to_nothing_makes_room_for_one_that_costs_far_less() -> None:
    """Its machines cost what they did when they were rented no longer."""
    slower = replace(DEAR, usd_per_hour=9.0, supply=0.99)
    state = fleet(3.0, "dear-1", "dear-2", "cheap-1")
    decision = decided(state, CHEAP, slower, limits=replace(LIMITS, usd_per_hour=19.5))
    assert decision.wanted == {"cheap": 3}
    assert of(decision, Start) == [] and of(decision, Rest)[0] == "dear-1"


def test_a_machine_that_claims_far_more_than_its_pool_gets_no_credit() -> None:
    names = tuple(f"cheap-{number}" for number in range(5))
    state = fleet(5.0, *names, memory=Memory(serving=names))
    rates = [1.0, 1.0, 1.0, 1.0, 9.0]
    workers = tuple(replace(one, rate=rate) for one, rate in zip(state.workers, rates, strict=True))
    decision = decided(replace(state, workers=workers))
    assert decision.memory.doubted == {"cheap-4"}
    assert of(decision, Start) == ["cheap"]


def test_workers_that_claim_more_than_the_queue_has_got_are_trusted_less_step_by_step_once_that_is_known() -> None:
    names = tuple(f"cheap-{number}" for number in range(5))
    state = replace(fleet(5.0, *names, memory=Memory(serving=names, starved=True)), starved=True)
    assert decided(replace(state, made=None)).memory.trust == 1.0, "a controller that has just begun knows nothing"
    first = decided(replace(state, made=2.0))
    assert (first.memory.trust, len(of(first, Start))) == (0.8, 2)
    again = replace(state, made=2.0, memory=replace(first.memory, launches={}))
    assert decided(again, now_s=NOW_S + 10).memory.trust == 0.8, "one step for each measurement"


def test_machines_of_a_pool_that_the_file_does_not_name_are_left_alone() -> None:
    assert decided(fleet(1.0, "cheap-1", "theirs-1", heard=["cheap-1"])).orders == ()
