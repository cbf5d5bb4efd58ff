"""A judge as a reward, through the scoring process, against a real server that answers as a test says."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import orjson
import pytest

from tests.http_server import Asked, Reply, serving
from tests.servers.ports import free_port
from tests.workers.asking import score
from tests.workers.test_environments import answers, scorer
from workers.environments.calls import ScoringError
from workers.environments.protocol import Spent
from workers.environments.scorer import Scorer

SETTINGS = {"model": "grader", "prompt": "{prompt} | {completion} | {answer}", "verdict": r"Score: (-?[0-9.]+)"}


def said(text: str | None, finish: str = "stop", **message: object) -> Reply:
    choice = {"message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    return Reply(200, orjson.dumps({"choices": [choice], "usage": {"total_tokens": 7}}))


def question(asked: Asked) -> str:
    body = orjson.loads(asked.body)
    assert asked.path == "/v1/chat/completions" and body["model"] == "grader"
    return str(body["messages"][0]["content"])


@contextmanager
def judged(url: str, timeout_s: float = 60.0, **settings: object) -> Iterator[Scorer]:
    table = SETTINGS | {"url": f"{url}/v1", "timeout_s": timeout_s, **settings}
    with scorer(kind="function", rewards={"graded": {"judge": table}}, timeout_s=90.0) as one:
        yield one


def test_a_judge_reads_prompt_answer_and_columns_and_its_last_verdict_counts() -> None:
    def grade(asked: Asked) -> Reply:
        prompt, completion, answer = question(asked).split(" | ")
        assert prompt == "user: 1 + 1\n\nassistant: =" and answer == "2"
        return said(f"Score: 9 would be too much. Score: {0.5 if completion == answer else -1}")

    chat = [{"role": "user", "content": "1 + 1"}, {"role": "assistant", "content": "="}]
    with serving(grade) as url, judged(url) as one:
        assert score(one, answers(["2", "3", "2"], chat, answer="2")) == [0.5, -1.0, 0.5]


def test_the_key_of_a_judge_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHO_QUEUE_JUDGE_API_KEY", "hunter2")
    headers = list[str]()

    def grade(asked: Asked) -> Reply:
        headers.append(asked.headers.get("authorization", ""))
        return said("Score: 1")

    with serving(grade) as url, judged(url) as one:
        assert score(one, answers(["x"], answer="")) == [1.0]
    assert headers == ["Bearer hunter2"]


def test_a_judge_that_is_busy_is_asked_again() -> None:
    replies = [Reply(429, b"slow down", {"Retry-After": "0.1"}), Reply(503), said("Score: 3")]
    with serving(lambda _: replies.pop(0)) as url, judged(url) as one:
        assert score(one, answers(["x"], answer="")) == [3.0]
        assert one.spent == Spent(calls=3, tokens=7)


@pytest.mark.parametrize(
    ("reply", "tries", "reason"),
    [
        (said(""), 1, "the judge answered nothing"),
        (said(None), 1, "the judge answered nothing"),
        (Reply(200, b"{}"), 1, "the judge answered nothing"),
        (said("Score: good"), 1, "has no verdict: …'Score: good'"),
        (said("Score: ."), 1, "has no verdict"),
        (said(None, refusal="I cannot rate that."), 1, "the judge refused: I cannot rate that."),
        (said("Score: 1", "content_filter"), 1, "its server filtered the answer"),
        (said("Score: 1", "length"), 1, "was cut off at max_tokens = 512"),
        (Reply(200, b"<html>"), 1, "is not JSON: b'<html>'"),
        (Reply(401, b"who are you"), 1, "the judge answered 401: who are you"),
        (Reply(429, b"tomorrow", {"Retry-After": "86400"}), 1, "the judge answered 429: tomorrow"),
        (Reply(500, b"broken"), 2, "the judge answered 500: broken"),
    ],
    ids=["empty", "null", "no choices", "no number", "no number in it", "refused", "filtered", "cut off", "no JSON",
         "401", "429 for long", "500"],
)  # fmt: skip
def test_a_judge_without_a_verdict_fails_the_attempt_by_its_name(reply: Reply, tries: int, reason: str) -> None:
    asked = list[Asked]()

    def refuse(one: Asked) -> Reply:
        asked.append(one)
        return reply

    with serving(refuse) as url, judged(url, tries=2) as one, pytest.raises(ScoringError) as told:
        score(one, answers(["x"], answer=""))
    assert reason in str(told.value) and str(told.value).endswith("(reward graded)")
    assert len(asked) == tries == one.spent.calls


def test_a_judge_that_is_gone_fails_the_attempt_by_its_name() -> None:
    with judged(f"http://127.0.0.1:{free_port()}", tries=1) as one, pytest.raises(ScoringError) as told:
        score(one, answers(["x"], answer=""))
    assert "the judge cannot be reached" in str(told.value) and str(told.value).endswith("(reward graded)")


def test_a_judge_that_is_slow_fails_the_attempt_by_its_name() -> None:
    over = threading.Event()

    def grade(asked: Asked) -> Reply:
        over.wait(60.0)
        return said("Score: 1")

    with serving(grade) as url, judged(url, timeout_s=1.0) as one:
        with pytest.raises(ScoringError, match=r"no verdict within timeout_s = 1 \(reward graded\)$"):
            score(one, answers(["x"], answer=""))
        assert one.spent == Spent(calls=1)
        over.set()


def test_no_more_answers_are_judged_at_a_time_than_are_allowed() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def counted(grade: Callable[[Asked], Reply]) -> Callable[[Asked], Reply]:
        def grade_one(asked: Asked) -> Reply:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            try:
                return grade(asked)
            finally:
                with lock:
                    now[0] -= 1

        return grade_one

    with serving(counted(lambda _: said("Score: 1"))) as url, judged(url, concurrency=2) as one:
        assert score(one, answers(["x"] * 12, answer="")) == [1.0] * 12
    assert most[0] <= 2
