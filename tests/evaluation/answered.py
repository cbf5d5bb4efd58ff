"""Made-up results of evaluations, for tests of those who keep and show them."""

from collections.abc import Sequence

import numpy as np

from echo_queue.evaluation.results import Answer, EvaluationResult, PromptAnswers
from echo_queue.records import Version


def answers_of(index: int, rewards: Sequence[float], length: int = 3) -> PromptAnswers:
    """Returns a prompt's answers of so many tokens; those without reward are cut off."""
    tokens = np.arange(length, dtype=np.int32)
    answers = (Answer(reward, length, "stop" if reward else "length", tokens) for reward in rewards)
    return PromptAnswers(index, tuple(answers), prompt=tokens)


def result_at(number: int, *, lineage: int = 1, name: str = "held-out", **fields: object) -> EvaluationResult:
    """Returns a result whose mean rises with the version, unless fields say otherwise."""
    mean = min(0.95, 0.2 + number / 100)
    values: dict[str, object] = {
        "evaluation": name,
        "version": Version(lineage, number),
        "round": number,
        "update": number,
        "prompts": 200,
        "samples": 4,
        "mean": mean,
        "low": mean - 0.06,
        "high": mean + 0.06,
        "pass_at": {"1": mean, "2": mean + 0.02, "4": mean + 0.04},
        "truncated": 0.02,
        "tokens": 41.3,
        "seconds": 12.3,
        "time_s": 1_790_000_000.0 + number,
    }
    return EvaluationResult(**(values | fields))  # type: ignore[arg-type]


def given_up_at(number: int, why: str, *, lineage: int = 1, name: str = "held-out") -> EvaluationResult:
    """Returns what is said of a round that was given up."""
    return EvaluationResult(name, Version(lineage, number), number, number, 200, 4, time_s=1.0, given_up=why)
