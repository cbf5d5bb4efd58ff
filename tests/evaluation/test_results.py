import numpy as np
import pytest
import zstandard

from echo_queue.connections.storage.object_store import MissingObject, ObjectStore
from echo_queue.evaluation import stored
from echo_queue.evaluation.results import PromptAnswers, best_mean, curves, result_of, summarise
from echo_queue.records import Group, Sample, Span, Version
from tests.evaluation.answered import answers_of, given_up_at, result_at


def compressed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


def test_failed_prompts_are_counted_and_in_no_figure() -> None:
    answered = [answers_of(0, [1.0, 1.0]), answers_of(1, [1.0, 0.0]), PromptAnswers(2, reason="too long")]
    found = summarise(result_at(20, prompts=3, samples=2), answered, success=1.0)
    assert (found.failed, found.mean, found.truncated, found.tokens) == (1, 0.75, 0.25, 3.0)
    assert found.pass_at == {"1": 0.75, "2": 1.0}
    assert found.low is not None and found.high is not None and found.low < 0.75 < found.high


def test_a_round_of_which_every_prompt_failed_has_no_figure() -> None:
    asked = given_up_at(20, "")
    found = summarise(asked, [PromptAnswers(0, reason="too long")], success=1.0)
    assert (found.failed, found.mean, found.pass_at) == (1, None, None)
    assert str(found) == "held-out at version 1.20: all 200 prompts failed"


def test_a_line_is_read_as_it_was_written_and_a_torn_one_is_none() -> None:
    line = result_at(20, best=True).line
    assert result_of(line) == result_at(20, best=True)
    assert result_of(line[:-9]) is None
    assert b'"version":"1.20"' in line


def test_a_result_is_one_readable_line() -> None:
    found = result_at(20, mean=0.71, low=0.65, high=0.77, pass_at={"1": 0.71, "4": 0.9}, failed=1)
    assert str(found) == (
        "held-out at version 1.20: 0.71 [0.65, 0.77] of 199 prompts, pass@1 0.71, pass@4 0.90, 2% cut off, 1 failed"
    )
    assert (
        str(given_up_at(20, "no worker serves it"))
        == "held-out at version 1.20: given up, 200 answered: no worker serves it"
    )


def test_a_later_lineage_abandons_what_was_measured_from_its_beginning_on() -> None:
    found = curves([result_at(0), result_at(20), result_at(40), result_at(30, lineage=2), result_at(0, name="other")])
    assert {name: [one.version for one in curve] for name, curve in found.items()} == {
        "held-out": [Version(1, 0), Version(1, 20), Version(2, 30)],
        "other": [Version(1, 0)],
    }


@pytest.mark.parametrize("answered_first", [True, False])
def test_a_round_that_was_given_up_counts_for_nothing_once_its_version_is_answered(answered_first: bool) -> None:
    both = [result_at(20), given_up_at(20, "no worker")]
    assert curves(both if answered_first else both[::-1]) == {"held-out": [result_at(20)]}
    assert curves([result_at(0), given_up_at(20, "no worker")])["held-out"][-1].given_up


def test_the_best_mean_is_that_of_an_answered_round() -> None:
    rounds = [result_at(0), given_up_at(20, "no worker"), result_at(40, mean=0.6), result_at(60, mean=0.3)]
    assert best_mean(rounds) == 0.6
    assert best_mean([]) < 0


def test_answers_are_read_back_from_the_store(object_store: ObjectStore) -> None:
    tokens = np.array([4, 5, 6], np.int32)
    sample = Sample(tokens, np.zeros(3, np.float32), (Span(0, 20),), 0.5, "length")
    group = Group("held-out/3/1", "held-out", 3, 1, 0, "w", 1, np.array([1, 2], np.int32), (sample, sample))
    kept, bare = (PromptAnswers.of(group, tokens=tokens) for tokens in (True, False))
    failed = PromptAnswers(0, reason="too long")
    stored.write(object_store, result_at(20), [kept, failed])
    stored.write(object_store, result_at(20, lineage=2), [bare])
    assert list(stored.versions(object_store)) == [("held-out", Version(1, 20)), ("held-out", Version(2, 20))]
    result, (first, second) = stored.read(object_store, "held-out", Version(1, 20))
    assert (result, first.reason, second.rewards) == (result_at(20), "too long", (0.5, 0.5))
    answer = second.answers[0]
    assert answer.tokens is not None and answer.tokens.tolist() == [4, 5, 6] and answer.finish == "length"
    assert second.prompt is not None and second.prompt.tolist() == [1, 2]
    (only,) = stored.read(object_store, "held-out", Version(2, 20))[1]
    assert only.prompt is None and only.answers[0].tokens is None and only.answers[0].length == 3


MOST_BYTES = 1_000
SPOILED = {
    "no compressed bytes": b"something else",
    "no result": compressed(b"{}\n"),
    "nothing": compressed(b""),
    "no answers": compressed(result_at(20).line + b"\n[]\n"),
    "no tokens": compressed(result_at(20).line + b'\n{"index":0,"answers":[],"reason":"","prompt":[1099511627776]}\n'),
    "too much": compressed(bytes(MOST_BYTES + 1)),
    "too large": bytes(MOST_BYTES + 1),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_object_is_named(object_store: ObjectStore, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "MOST_BYTES", MOST_BYTES)
    with pytest.raises(MissingObject):
        stored.read(object_store, "held-out", Version(1, 20))
    object_store.put(stored.key_of("held-out", Version(1, 20)), SPOILED[what])
    with pytest.raises(stored.SpoiledAnswers, match="evaluations/held-out/1-20"):
        stored.read(object_store, "held-out", Version(1, 20))
