"""The fate of each prompt: none that was acknowledged is lost, none is trained twice, none dies without a cause, and
nothing appears that no role attempted.
"""

from collections import Counter
from collections.abc import Collection, Iterator

from tests.faults.history.checker.evidence import Evidence, Violation

UNTOLD = 3
"""Leases of one task at most that a worker was granted and died before it could write down."""
MISFORTUNES, ONE_IN_UNLUCKY = 5, 200
"""`MISFORTUNES` prompts, and one more for each `ONE_IN_UNLUCKY` promised ones, may die of workers that were killed. All
other dead prompts have a cause of their own."""


def promised(evidence: Evidence) -> dict[str, str]:
    """Ids whose submission, or whose set's declaration, was acknowledged: id → where. None of a held-out set is.

    A chunk that its source no longer held may be refused; it is promised from when it is submitted after all.
    """
    refused = {(event.facts.set, event.facts.parts[0].number) for event in evidence.attempts("reject")}
    resubmitted = {(event.facts.set, event.facts.parts[0].number) for event in evidence.attempts("submit")}
    epochs = evidence.epochs
    ids: dict[str, str] = {}
    for event, attempt in evidence.acknowledged("declare", "submit").values():
        if attempt.facts.set in evidence.held_out:
            continue
        for part in attempt.facts.parts:
            if event.step == "declare" and (attempt.facts.set, part.number) in refused - resubmitted:
                continue
            for task in ids_of(attempt.facts.set, epochs[attempt.facts.set], part.first, part.size):
                ids.setdefault(task, event.place)
    return ids


def lost(evidence: Evidence) -> Iterator[Violation]:
    trained = set(evidence.trained)
    missing = [task for task in promised(evidence) if task not in trained and task not in evidence.dead]
    if missing:
        what = f"{len(missing)} prompts, whose submission was acknowledged, are neither trained nor dead"
        yield evidence.violation("lost", what, missing)
    silent = [task for task, reason in evidence.dead.items() if not reason.strip()]
    if silent:
        yield evidence.violation("dead without a reason", f"{len(silent)} prompts", silent)


def deaths(evidence: Evidence) -> Iterator[Violation]:
    """Each death is explained by what others saw: spoiled tokens, or as many leases as a task may have.

    What was leased so often and is no poison had workers killed each time, which happens to few.
    """
    enough, early = leased_too_rarely(evidence, evidence.dead)
    if early:
        what = f"{len(early)} prompts are dead, not spoiled, and were leased fewer than {enough} times"
        yield evidence.violation("dead without a cause", what, early)
    unlucky = [task for task in evidence.dead if task not in evidence.spoiled and not evidence.poison(task)]
    if len(unlucky) > MISFORTUNES + len(promised(evidence)) // ONE_IN_UNLUCKY:
        what = f"{len(unlucky)} prompts are dead that were neither poison nor spoiled"
        yield evidence.violation("too many dead", what, unlucky)
    if scored := [task for task in set(evidence.trained) if evidence.poison(task)]:
        yield evidence.violation("poison trained", f"{len(scored)} prompts that no environment can score", scored)


def leased_too_rarely(evidence: Evidence, given_up: Collection[str]) -> tuple[int, list[str]]:
    """Returns how often a task must have been leased to be given up, and those of these ids that neither were leased so
    often nor spoiled."""
    leases = _leases(evidence)
    answered = {(event.life, event.number) for event in evidence.answers("lease")}
    unanswered = sum((event.life, event.number) not in answered for event in evidence.attempts("lease"))
    enough = evidence.max_attempts - min(UNTOLD, unanswered)
    return enough, [task for task in given_up if task not in evidence.spoiled and leases[task] < enough]


def _leases(evidence: Evidence) -> Counter[str]:
    """Counts the leases of each id since it was last revived, without those that were handed back."""
    leases: Counter[str] = Counter()
    handed_back = {
        key: attempt.facts.ids
        for key, (answer, attempt) in evidence.acknowledged("release").items()
        if answer.facts.note == str(len(attempt.facts.ids))
    }
    revived = {(event.life, event.number) for event in evidence.answers("revive")}
    for event in evidence.events:
        if event.step == "lease" and event.answered:
            leases.update(event.facts.ids)
        if event.step == "release" and event.answered:
            leases.subtract(handed_back.get((event.life, event.number), ()))
        if event.step == "revive" and not event.answered and (event.life, event.number) in revived:
            for task in event.facts.ids:
                leases[task] = 0
    return leases


def never_attempted(evidence: Evidence) -> Iterator[Violation]:
    epochs = evidence.epochs
    attempted = {
        task
        for event in evidence.attempts("submit")
        if event.facts.set not in evidence.held_out
        for part in event.facts.parts
        for task in ids_of(event.facts.set, epochs.get(event.facts.set, 1), part.first, part.size)
    }
    leased = {task for event in evidence.answers("lease") for task in event.facts.ids if not evidence.is_held_out(task)}
    for name, ids in (("trained", set(evidence.trained)), ("dead", set(evidence.dead)), ("leased", leased)):
        if unknown := sorted(ids - attempted):
            yield evidence.violation("unheard of", f"{len(unknown)} {name} ids were never submitted", unknown)
    made = {group.id for group in evidence.completed.values()}
    if unmade := sorted(set(evidence.trained) - made):
        yield evidence.violation("unheard of", f"{len(unmade)} trained ids were never completed", unmade)


def trained_twice(evidence: Evidence) -> Iterator[Violation]:
    again = [task for task, times in Counter(evidence.trained).items() if times > 1]
    if again:
        yield evidence.violation("trained twice", f"{len(again)} ids in the surviving lineage", again)
    both = sorted(set(evidence.trained) & set(evidence.dead))
    if both:
        yield evidence.violation("trained and dead", f"{len(both)} ids", both)


def ids_of(name: str, epochs: int, first: int, count: int) -> Iterator[str]:
    return (f"{name}/{epoch}/{index}" for epoch in range(epochs) for index in range(first, first + count))
