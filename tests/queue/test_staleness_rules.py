"""The rules of lag, bound and pace, as properties of pure functions."""

from hypothesis import given
from hypothesis import strategies as st

from echo_queue.queue import staleness_rules
from echo_queue.queue.staleness_rules import within_bound
from echo_queue.records import Version

SMALL = st.integers(0, 50)


@given(v=SMALL, untrained=SMALL, batch=st.integers(1, 20), s=SMALL)
def test_a_group_of_its_oldest_version_is_admissible_when_due(v: int, untrained: int, batch: int, s: int) -> None:
    at = staleness_rules.due(v, untrained, batch)
    oldest = staleness_rules.min_pv(v, untrained, batch, s)
    assert staleness_rules.admissible(at, oldest, s)
    assert oldest == 0 or not staleness_rules.admissible(at, oldest - 1, s)


@given(v=SMALL, batch=st.integers(1, 20), s=SMALL, behind=st.integers(0, 5))
def test_the_bound_admits_at_most_s_plus_1_batches(v: int, batch: int, s: int, behind: int) -> None:
    published = max(0, v - behind)
    admitted = 0
    while within_bound(staleness_rules.min_pv(v, admitted, batch, s), published):
        admitted += 1
    assert admitted == max(0, s + 1 - (v - published)) * batch


def test_with_s_0_one_batch_is_admitted_and_only_at_the_newest_version() -> None:
    assert [within_bound(staleness_rules.min_pv(5, n, 2, 0), 5) for n in range(4)] == [True, True, False, False]
    assert not within_bound(staleness_rules.min_pv(5, 0, 2, 0), 4)
    assert not within_bound(0, None)


def test_versions_above_a_later_fork_are_abandoned_and_those_below_live_on() -> None:
    forks = {1: Version(0, 10), 2: Version(1, 12), 3: Version(1, 11)}
    for ancestor in ((0, 10), (1, 11), (3, 30)):
        assert not staleness_rules.abandoned(Version(*ancestor), forks), ancestor
    for left_behind in ((0, 11), (1, 12), (2, 12), (2, 13)):
        assert staleness_rules.abandoned(Version(*left_behind), forks), left_behind


def test_weights_with_which_a_lineage_began_are_those_of_its_parent() -> None:
    forks = {1: Version(0, 0), 2: Version(1, 5), 3: Version(1, 5)}
    assert not staleness_rules.abandoned(Version(2, 5), forks)
    assert staleness_rules.abandoned(Version(2, 6), forks)


def test_a_fork_that_was_forgotten_has_no_ancestors() -> None:
    forks = {1: Version(0, 0), 7: Version(6, 20)}
    assert staleness_rules.abandoned(Version(1, 1), forks)
    assert not staleness_rules.abandoned(Version(6, 20), forks)


def test_the_window_widens_when_the_learner_waited() -> None:
    assert staleness_rules.pace(2.0, waited_s=0.006, t_train_s=1.0, ready_after=100, batch=8) == 2.25


def test_the_window_narrows_when_groups_pile_up() -> None:
    assert staleness_rules.pace(2.0, waited_s=0.004, t_train_s=1.0, ready_after=3, batch=8) == 1.95
    assert staleness_rules.pace(2.0, waited_s=0.004, t_train_s=1.0, ready_after=2, batch=8) == 2.0


@given(window=st.floats(1, 20), waited_s=st.floats(0, 10), ready=st.integers(0, 100), batch=st.integers(1, 64), s=SMALL)
def test_the_window_stays_between_one_batch_and_its_widest(
    window: float, waited_s: float, ready: int, batch: int, s: int
) -> None:
    assert 1.0 <= staleness_rules.pace(window, waited_s, 1.0, ready, batch, widest=s + 1) <= max(window, s + 1)
