"""The rounds of evaluation: one version alone answers each; every prompt of it is answered once, has failed for a
reason or was given up with its round; nothing held out is trained; what was stored and told is what workers answered.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isclose
from statistics import fmean

from echo_queue.evaluation.results import EvaluationResult
from echo_queue.records import Version
from tests.faults.history.checker.check_prompts import MISFORTUNES, leased_too_rarely
from tests.faults.history.checker.evidence import Evidence, Kept, Violation
from tests.faults.history.facts import KEEPS, Begun, Generated

AS_FIGURED = {"time_s": 0.0, "seconds": 0.0, "best": False}
"""What two learners that store the results of one round may say differently."""


@dataclass(frozen=True)
class Round:
    """`versions`: those that the round was asked of, of which there should be one. `begun_s`, `concluded_s`: the first
    moments at which a learner was told so; −∞ and ∞ if none was."""

    number: int
    versions: frozenset[Version]
    sets: frozenset[str]
    begun_s: float
    concluded_s: float

    @property
    def version(self) -> Version:
        return max(self.versions)


@dataclass(frozen=True)
class RoundCounts:
    """`answered`, `given_up`: rounds. `overtaken`: answered ones during which a newer version was published.

    `answers`: prompts that were answered; `failed`: those that were not. `keepers_killed`: workers that kept a round's
    version for it and ended without a word.
    """

    answered: int
    given_up: int
    overtaken: int
    answers: int
    failed: int
    keepers_killed: int

    def __str__(self) -> str:
        return (
            f"{self.answered:,} rounds answered, {self.overtaken:,} of them while newer versions came, "
            f"{self.given_up:,} given up; {self.answers:,} prompts answered, {self.failed:,} failed; "
            f"{self.keepers_killed:,} keepers killed"
        )


class Rounds:
    """All rounds of a run, as learners asked and concluded them, and what became of their prompts."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence

    @cached_property
    def by_number(self) -> Mapping[int, Round]:
        """Learners were told of most rounds; of one whose learner died too early, only the lines tell."""
        versions: defaultdict[int, set[Version]] = defaultdict(set)
        sets: defaultdict[int, set[str]] = defaultdict(set)
        begun_s: dict[int, float] = {}
        for answer, attempt in self.evidence.acknowledged("evaluate").values():
            if (number := answer.facts.round) is not None:
                versions[number].add(Version(attempt.facts.lineage or 0, attempt.facts.version or 0))
                sets[number] |= {*attempt.facts.note.split()}
                begun_s.setdefault(number, answer.time_s)
        for line in self.evidence.told:
            versions[line.round].add(line.version)
            sets[line.round].add(line.evaluation)
        ended_s: dict[int, float] = {}
        for answer, attempt in self.evidence.acknowledged("conclude").values():
            ended_s.setdefault(attempt.facts.round or 0, answer.time_s)
        return {
            number: Round(
                number,
                frozenset(versions[number]),
                frozenset(sets[number]),
                begun_s.get(number, -inf),
                ended_s.get(number, inf),
            )
            for number in versions
        }

    @cached_property
    def lines(self) -> Mapping[tuple[int, str], list[EvaluationResult]]:
        """(round, set) → the lines that the queue keeps of it."""
        found: defaultdict[tuple[int, str], list[EvaluationResult]] = defaultdict(list)
        for line in self.evidence.told:
            found[line.round, line.evaluation].append(line)
        return found

    def round_of(self, task: str) -> Round | None:
        return self.by_number.get(int(task.rsplit("/", 2)[1]))

    @property
    def counts(self) -> RoundCounts | None:
        """Returns None for a run without held-out sets."""
        if not self.evidence.held_out:
            return None
        given_up = {line.round for line in self.evidence.told if line.given_up}
        answered = [one for number, one in self.by_number.items() if number not in given_up]
        rows = [row for kept in self.evidence.kept for row in kept.rows]
        return RoundCounts(
            answered=len(answered),
            given_up=len(given_up),
            overtaken=sum(map(self._is_overtaken, answered)),
            answers=sum(not row.reason for row in rows),
            failed=sum(bool(row.reason) for row in rows),
            keepers_killed=self._keepers_killed(),
        )

    def _is_overtaken(self, one: Round) -> bool:
        return any(
            one.begun_s < answer.time_s < one.concluded_s
            and Version(attempt.facts.lineage or 0, attempt.facts.version or 0) > one.version
            for answer, attempt in self.evidence.acknowledged("publish").values()
        )

    def _keepers_killed(self) -> int:
        """Counts the lives whose last lease made them keepers of a round that was not over when they fell silent."""
        keeps, left, seen_s = dict[str, bool](), set[str](), dict[str, float]()
        for event in self.evidence.events:
            seen_s[event.life] = event.time_s
            if event.step == "lease" and event.answered:
                keeps[event.life] = event.facts.note == KEEPS
            if event.step == "leave":
                left.add(event.life)
        return sum(
            any(one.begun_s <= seen_s[life] < one.concluded_s < inf for one in self.by_number.values())
            for life, keeper in keeps.items()
            if keeper and life not in left
        )

    # What must hold ---------------------------------------------------------------------------------------------------

    def violations(self) -> Iterator[Violation]:
        yield from self._of_one_version()
        yield from self._apart_from_training()
        yield from self._known()
        yield from self._answered_once()
        yield from self._ended()
        yield from self._told()
        for kept in self.evidence.kept:
            yield from self._stored(kept)
        yield from self._failures()

    def _of_one_version(self) -> Iterator[Violation]:
        if torn := [str(one.number) for one in self.by_number.values() if len(one.versions) > 1]:
            yield Violation("mixed round", "rounds that were asked of several versions", tuple(torn))
        accepted = {made.mark: made for made, outcome in self._completions() if outcome == "accepted"}
        if mixed := [made for made in accepted.values() if not self._is_of_its_version(made)]:
            first, asked = mixed[0], self.round_of(mixed[0].id)
            made_by = f"{first.lineage}.{first.oldest} … {first.newest}, by tensors of {first.stamp or 'none'}"
            what = (
                f"{len(mixed)} answers were accepted, the first of {made_by}, to a round of {asked and asked.version}"
            )
            yield self.evidence.violation("mixed answer", what, [made.id for made in mixed])
        others = [
            task
            for answer, attempt in self.evidence.acknowledged("lease").values()
            for task in self._held_out_of(answer.facts.ids)
            if (asked := self.round_of(task)) and asked.version != (attempt.facts.lineage, attempt.facts.version)
        ]
        if others:
            what = f"{len(others)} prompts were asked of workers that serve another version than the round's"
            yield self.evidence.violation("asked of another version", what, others)
        begun = (one for event in self.evidence.answers("lease") for one in event.facts.partials)
        strange = [
            one.id for one in begun if self.evidence.is_held_out(one.id) and not self._is_begun_by_its_version(one)
        ]
        if strange:
            what = f"{len(strange)} partial rollouts of another version were handed out for a round"
            yield self.evidence.violation("mixed partial rollout", what, strange)

    def _is_of_its_version(self, made: Generated) -> bool:
        asked = self.round_of(made.id)
        if asked is None:
            return True  # `_known` says so
        labels = {(made.lineage, made.oldest), (made.lineage, made.newest)}
        return labels == {tuple(asked.version)} and (not self.evidence.stamped or made.stamp == str(asked.version))

    def _is_begun_by_its_version(self, begun: Begun) -> bool:
        asked = self.round_of(begun.id)
        labels = {(begun.lineage, begun.oldest), (begun.lineage, begun.newest)}
        return asked is None or labels == {tuple(asked.version)}

    def _apart_from_training(self) -> Iterator[Violation]:
        """Nothing held out is trained, or handed to a learner to train; no other set is evaluated."""
        drained = (task for event in self.evidence.answers("drain", "fetch") for task in event.facts.ids)
        trained = {task for update in self.evidence.updates for task in update.ids} | {*self.evidence.trained, *drained}
        for name, ids in (("trained, or handed out to be", trained), ("dead among training's", self.evidence.dead)):
            if wrong := sorted(self._held_out_of(ids)):
                yield self.evidence.violation("held out and trained", f"{len(wrong)} prompts are {name}", wrong)
        scored = {task for event in self.evidence.answers("scored") for task in event.facts.ids}
        if wrong := sorted(scored - self._held_out_of(scored)):
            yield self.evidence.violation("trained and evaluated", f"{len(wrong)} answers of a round", wrong)
        asked = {name for one in self.by_number.values() for name in one.sets}
        stored = {kept.result.evaluation for kept in self.evidence.kept}
        if others := (asked | stored) - self.evidence.held_out:
            yield Violation("trained and evaluated", "sets that are not held out", tuple(sorted(others)))

    def _known(self) -> Iterator[Violation]:
        """What is leased or answered belongs to a round, and to a prompt of its set."""
        ids = {task for event in self.evidence.answers("lease", "scored") for task in event.facts.ids}
        sizes = self._sizes
        unknown = [
            task
            for task in sorted(self._held_out_of(ids))
            if self.round_of(task) is None or int(task.rsplit("/", 1)[1]) >= sizes[task.rsplit("/", 2)[0]]
        ]
        if unknown:
            yield self.evidence.violation("unheard of", f"{len(unknown)} prompts that no round has asked", unknown)

    def _answered_once(self) -> Iterator[Violation]:
        accepted = Counter(made.id for made in {one for one, outcome in self._completions() if outcome == "accepted"})
        sent_back = Counter(task for event in self.evidence.attempts("reject_group") for task in event.facts.ids)
        if again := [task for task, times in accepted.items() if times > 1 + sent_back[task]]:
            what = f"{len(again)} prompts of a round, although no answer before was refused"
            yield self.evidence.violation("answered twice", what, again)

    def _ended(self) -> Iterator[Violation]:
        tried = {event.facts.round for event in self.evidence.attempts("conclude")}
        if left := [str(number) for number in self.by_number if number not in tried]:
            yield Violation("round left", "rounds that no learner has concluded", tuple(left))
        final = self.evidence.final
        if final.evaluation or final.scored:
            yield Violation("round left", f"{final.evaluation + final.scored} prompts of a round lie in the queue")

    def _told(self) -> Iterator[Violation]:
        """Each set of a round that is over has one line, and a result with the same figures unless it was given up.

        A round that a learner had stored and the next one gave up, because its weights were abandoned, may have both.
        """
        kept = {(one.result.round, one.result.evaluation): one.result for one in self.evidence.kept}
        for one in self.by_number.values():
            if one.concluded_s == inf:
                continue
            for name in sorted(one.sets):
                where, lines = f"round {one.number} of {name}", self.lines.get((one.number, name), [])
                given_up, answered = ([line for line in lines if bool(line.given_up) is so] for so in (True, False))
                if not lines or max(len(given_up), len(answered)) > 1:
                    yield Violation("told once", f"{where} has {len(lines)} lines")
                result = kept.get((one.number, name))
                if any(_figures(line) != _figures(result) for line in answered):
                    yield Violation("results", f"{where}: the line says {answered[0]}, the store {result or 'nothing'}")
        for key, result in kept.items():
            if key not in self.lines:
                yield Violation("results", f"round {key[0]} of {key[1]} is stored and was never told: {result}")

    def _stored(self, kept: Kept) -> Iterator[Violation]:
        """The object has each prompt of the set once, with an answer that a worker gave, and the figures of these."""
        result, rows = kept.result, kept.rows
        name, number = result.evaluation, result.round
        where = f"{name} at version {result.version}"
        if sorted(row.index for row in rows) != list(range(self._sizes[name])):
            yield Violation("results", f"{where} has {len(rows)} prompts, not {self._sizes[name]} once each")
        answered = [row for row in rows if row.rewards]
        if silent := [row for row in rows if bool(row.rewards) == bool(row.reason.strip())]:
            ids = [f"{name}/{number}/{row.index}" for row in silent]
            yield self.evidence.violation("results", f"{where}: prompts with neither or both of answer and reason", ids)
        given = self._given
        strange = [task for row in answered if row.said not in given[task := f"{name}/{number}/{row.index}"]]
        if strange:
            what = f"{where}: {len(strange)} answers that no worker gave, or that were refused"
            yield self.evidence.violation("results", what, strange)
        mean = fmean(fmean(row.rewards) for row in answered) if answered else None
        told = (result.mean is None) == (mean is None) and isclose(result.mean or 0.0, mean or 0.0, abs_tol=1e-9)
        if not told or (result.prompts, result.failed) != (len(rows), len(rows) - len(answered)):
            yield Violation("results", f"{where}: the result says {result}, its answers a mean of {mean}")

    def _failures(self) -> Iterator[Violation]:
        """Poison is never answered; whatever else failed was spoiled, or leased as often as a task may be."""
        rows = {
            f"{kept.result.evaluation}/{kept.result.round}/{row.index}": row
            for kept in self.evidence.kept
            for row in kept.rows
        }
        if scored := [task for task, row in rows.items() if row.rewards and self.evidence.poison(task)]:
            yield self.evidence.violation("poison answered", f"{len(scored)} prompts", scored)
        failed = [task for task, row in rows.items() if not row.rewards]
        enough, early = leased_too_rarely(self.evidence, failed)
        if early:
            what = f"{len(early)} prompts failed, not spoiled, and were leased fewer than {enough} times"
            yield self.evidence.violation("failed without a cause", what, early)
        unlucky = [task for task in failed if task not in self.evidence.spoiled and not self.evidence.poison(task)]
        if len(unlucky) > MISFORTUNES + len(rows) // 100:
            what = f"{len(unlucky)} prompts failed that were neither poison nor spoiled"
            yield self.evidence.violation("too many failed", what, unlucky)

    # What is known ----------------------------------------------------------------------------------------------------

    def _held_out_of(self, ids: Iterable[str]) -> set[str]:
        return {task for task in ids if self.evidence.is_held_out(task)}

    @cached_property
    def _sizes(self) -> Counter[str]:
        """The number of prompts of each held-out set, as it was declared."""
        parts = {
            (event.facts.set, part)
            for event in self.evidence.attempts("declare")
            if event.facts.set in self.evidence.held_out
            for part in event.facts.parts
        }
        sizes = Counter[str]()
        for name, part in parts:
            sizes[name] += part.size
        return sizes

    def _completions(self) -> Iterator[tuple[Generated, str]]:
        """Yields each answer to a prompt of a round, and what its maker was told; nothing if it died before."""
        told = {(answer.life, answer.number): answer.facts.outcomes for answer in self.evidence.answers("complete")}
        for event in self.evidence.attempts("complete"):
            outcomes = told.get((event.life, event.number), ("",) * len(event.facts.groups))
            for made, outcome in zip(event.facts.groups, outcomes, strict=True):
                if self.evidence.is_held_out(made.id):
                    yield made, outcome

    @cached_property
    def _given(self) -> defaultdict[str, set[str]]:
        """Id → the prints of the answers that may have been accepted.

        One that lost its reply and is sent again is `unknown` once its round is over.
        """
        given: defaultdict[str, set[str]] = defaultdict(set)
        for made, outcome in self._completions():
            if outcome in ("accepted", "unknown", ""):
                given[made.id].add(made.said)
        return given


def _figures(result: EvaluationResult | None) -> EvaluationResult | None:
    return result and replace(result, **AS_FIGURED)
