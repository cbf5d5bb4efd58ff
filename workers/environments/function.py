"""The reward functions of the kind `function`: a user's own, called as TRL's trainers call theirs, and ready-made ones.

- The keywords are `prompts`, `completions`, `completion_ids`, `trainer_state` (None here), and each further column as a
  list. A completion of a chat prompt is `[{"role": "assistant", "content": …}]`, of a text prompt a text. A function
  with a parameter of one of the names in `ON_REQUEST` gets that, too.
- A function may be plain or `async def`. The plain ones are called first, one after the other; then the coroutines of
  the group wait side by side, and beside those of other groups.
- A reward is the weighted sum of what all functions gave. If one fails, the call fails by its name; there is no reward.

Source: huggingface/trl, docs/source/grpo_trainer.md, "Using a custom reward function".
"""

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from echo_queue.config.named_function import named_function
from echo_queue.config.rewards import FUNCTION, ON_REQUEST, SINGLE, TABLES, Reward, weighted
from echo_queue.connections.secrets import judge_key
from workers.environments import ready_made
from workers.environments.checked_rewards import RewardError, checked_rewards
from workers.environments.protocol import Rewards, ScoringRequest, Spent, Tell, Within
from workers.environments.settled import in_event_loop


class Functions:
    """`function`: the only one, if there are no tables."""

    def __init__(self, function: str, tables: Mapping[str, Mapping[str, Any]]) -> None:
        self._tables = {name: Reward.model_validate(table) for name, table in tables.items()}
        self._named = bool(tables)
        if not tables:
            self._tables = {SINGLE: Reward(function=function)}
        made = {name: self._made(name, table) for name, table in self._tables.items()}
        self._judges: list[Any] = [made[name] for name, table in self._tables.items() if table.judge]
        self._functions = {name: RewardFunction(one) for name, one in made.items()}

    async def score(self, request: ScoringRequest, tell: Tell) -> Rewards:
        """Scores the completions by every function. Raises `RewardError` if one of them fails.

        Until the first coroutine waits, this may be run by hand.
        """
        try:
            return await self._scored(request, tell)
        finally:
            for judge in self._judges:
                if (spent := judge.take_spent()) != Spent():
                    tell(spent)

    async def _scored(self, request: ScoringRequest, tell: Tell) -> Rewards:
        answers, waiting = dict[str, Any](), dict[str, Awaitable[Any]]()
        try:
            for name, function in self._functions.items():
                if self._named:
                    tell(Within((name,)))
                with self._failing(name):
                    answers[name] = function(request)
                if inspect.isawaitable(answers[name]):
                    waiting[name] = answers[name]
        except BaseException:
            for one in waiting.values():
                _drop(one)
            raise
        if waiting:
            await in_event_loop()
            answers |= await self._awaited(waiting, tell)
        count = len(request.completions)
        parts = {name: self._checked(name, answer, count) for name, answer in answers.items()}
        of_samples = (dict(zip(parts, values, strict=True)) for values in zip(*parts.values(), strict=True))
        return Rewards([weighted(each, self._tables) for each in of_samples], parts)

    async def _awaited(self, waiting: Mapping[str, Awaitable[Any]], tell: Tell) -> dict[str, Any]:
        """Awaits all of them at once. The first that fails ends the others."""
        import asyncio  # not sooner: most functions need none, and it takes a while

        left = dict.fromkeys(waiting)

        async def answer(name: str, one: Awaitable[Any]) -> Any:
            with self._failing(name):
                found = await one
            del left[name]
            if self._named:
                tell(Within(tuple(left)))
            return found

        if self._named:
            tell(Within(tuple(left)))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {name: group.create_task(answer(name, one)) for name, one in waiting.items()}
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from failed.exceptions[0].__cause__
        return {name: task.result() for name, task in tasks.items()}

    def _checked(self, name: str, answer: Any, count: int) -> list[float]:
        with self._failing(name):
            return checked_rewards(answer, count)

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        """Gives what is raised within the name of its function. What ends a coroutine from outside stays as it is."""
        try:
            yield
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            raise RewardError(name if self._named else "") from error

    def _made(self, name: str, table: Reward) -> Callable[..., Any]:
        if table.overlong:
            return ready_made.overlong(table.overlong)
        if table.format:
            return ready_made.matches(table.format)
        if table.judge:
            from workers.environments.judge import JudgeFunction  # not sooner: its client takes a while to import

            return JudgeFunction(table.judge, judge_key())
        return named_function(table.function, f"{TABLES}.{name}.function" if self._named else FUNCTION, "worker")


class RewardFunction:
    """One function, which is called with what its parameters ask for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._asked: list[str] = []
        with suppress(TypeError, ValueError):  # of one that is not written in Python
            parameters = inspect.signature(function).parameters
            self._asked = [name for name in ON_REQUEST if name in parameters]

    def __call__(self, request: ScoringRequest) -> Any:
        count = len(request.completions)
        on_request = {
            "token_counts": [len(ids) for ids in request.completion_ids],
            "finish_reasons": list(request.finish_reasons),
            "versions": list(request.versions),
        }
        return self._function(
            prompts=[request.prompt] * count,
            completions=_completions(request),
            completion_ids=list(request.completion_ids),
            trainer_state=None,
            **{name: on_request[name] for name in self._asked},
            **{name: [value] * count for name, value in request.columns.items()},
        )


def _completions(request: ScoringRequest) -> Sequence[Any]:
    if isinstance(request.prompt, str):
        return list(request.completions)
    return [[{"role": "assistant", "content": completion}] for completion in request.completions]


def _drop(waiting: Awaitable[Any]) -> None:
    """Ends a coroutine that was not begun, of which Python would warn."""
    if inspect.iscoroutine(waiting):
        waiting.close()
