"""A judge as a reward function: a model behind an OpenAI-compatible address, whose verdict on an answer is a number.

- Each answer is one question. Those of all groups in this process share its places (`concurrency`).
- A server that is away, too busy (429) or broken (5xx) is asked again after pauses that grow, each of a random length,
  and never sooner than it said (`Retry-After`), as long as `timeout_s` and `tries` allow.
- Whatever is no verdict raises `NoVerdict`: nothing at all, a refusal, an answer that was cut off or has no number.

Source: platform.openai.com, API reference, "Create chat completion".
"""

import asyncio
import math
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2
import orjson

from echo_queue.config.rewards import Judge
from workers.environments.protocol import Spent

AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same question may be answered."""
PAUSE_S, PAUSE_MAX_S = 0.5, 20.0
SHOWN = 200
"""The characters of an answer that an error shows."""


class NoVerdict(Exception):
    """The judge gave no verdict on an answer. The message says why."""


class JudgeFunction:
    """The reward function. `key`: the server's, if it asks for one."""

    def __init__(self, settings: Judge, key: str | None) -> None:
        self._prompt = settings.prompt
        self._server = _Server(settings, key)

    async def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Sequence[Any]
    ) -> list[float]:
        questions = [
            _question(self._prompt, prompt, completion, columns, place)
            for place, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._server.verdict(question)) for question in questions]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    def take_spent(self) -> Spent:
        """Returns what all calls have cost since this was asked last."""
        spent, self._server.spent = self._server.spent, Spent()
        return spent


class _Server:
    def __init__(self, settings: Judge, key: str | None) -> None:
        self._settings = settings
        self._pattern = re.compile(settings.verdict)
        self._places = asyncio.Semaphore(settings.concurrency)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx2.Limits(max_connections=settings.concurrency)
        self.spent = Spent()
        self._http = httpx2.AsyncClient(headers=headers, limits=limits, timeout=None, trust_env=False)

    async def verdict(self, question: str) -> float:
        """Returns the verdict on an answer. Raises `NoVerdict`."""
        limit_s = self._settings.timeout_s
        try:
            async with asyncio.timeout(limit_s), self._places:
                return self._number(await self._asked(question))
        except TimeoutError:
            raise NoVerdict(f"the judge gave no verdict within timeout_s = {limit_s:g}") from None

    async def _asked(self, question: str) -> Any:
        """Returns the server's answer. Raises `NoVerdict` once it was asked `tries` times, or for one that is final."""
        settings, why = self._settings, ""
        for number in range(settings.tries):
            body = {
                "model": settings.model,
                "messages": [{"role": "user", "content": question}],
                "max_tokens": settings.max_tokens,
                "temperature": settings.temperature,
            }
            least_s = 0.0
            self.spent += Spent(calls=1)
            try:
                reply = await self._http.post(f"{settings.url.rstrip('/')}/chat/completions", json=body)
            except httpx2.TransportError as error:
                why = f"cannot be reached: {error or type(error).__name__}"
            else:
                if reply.status_code == httpx2.codes.OK:
                    answer = _read(reply.content)
                    self.spent += Spent(tokens=_tokens_of(answer))
                    return answer
                why = f"answered {reply.status_code}: {reply.text[:SHOWN]}"
                if reply.status_code not in AGAIN:
                    break
                if (least_s := _retry_after(reply.headers)) >= settings.timeout_s:
                    break
            if number + 1 < settings.tries:
                pause_s = min(PAUSE_MAX_S, PAUSE_S * 2**number) * random.uniform(0.5, 1.0)
                await asyncio.sleep(max(least_s, pause_s))
        raise NoVerdict(f"the judge {why}")

    def _number(self, answer: Any) -> float:
        """Returns the last verdict in the server's answer. Raises `NoVerdict`."""
        match answer:
            case {"choices": [{"message": {"refusal": str(why)}}, *_]} if why:
                raise NoVerdict(f"the judge refused: {why[:SHOWN]}")
            case {"choices": [{"finish_reason": "content_filter"}, *_]}:
                raise NoVerdict("the judge refused: its server filtered the answer")
            case {"choices": [{"finish_reason": "length"}, *_]}:
                raise NoVerdict(f"the judge was cut off at max_tokens = {self._settings.max_tokens}")
            case {"choices": [{"message": {"content": str(text)}}, *_]} if text.strip():
                found = list(self._pattern.finditer(text))
            case _:
                raise NoVerdict(f"the judge answered nothing: {orjson.dumps(answer)[:SHOWN].decode(errors='replace')}")
        number = _float(found[-1][1]) if found else math.nan
        if not math.isfinite(number):
            raise NoVerdict(f"the judge's answer has no verdict: …{text[-SHOWN:]!r}")
        return number


def _read(content: bytes) -> Any:
    """Returns the document of an answer. Raises `NoVerdict` if it is none."""
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        raise NoVerdict(f"the judge's answer is not JSON: {content[:SHOWN]!r}") from None


def _tokens_of(answer: Any) -> int:
    """Returns the tokens of question and answer, as the server counted them; 0 if it did not."""
    match answer:
        case {"usage": {"total_tokens": int(tokens)}} if tokens > 0:
            return tokens
    return 0


def _question(template: str, prompt: Any, completion: Any, columns: Mapping[str, Sequence[Any]], place: int) -> str:
    """Returns the judge's question about the answer at `place` of a group."""
    values = {name: values[place] for name, values in columns.items() if isinstance(values, Sequence)}
    return template.format_map(values | {"prompt": _text(prompt), "completion": _text(completion)})


def _text(said: str | Sequence[Mapping[str, str]]) -> str:
    """Returns a text as it is, one message as its text, and a chat as its messages, each behind its role."""
    if isinstance(said, str):
        return said
    if len(said) == 1:
        return said[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in said)


def _retry_after(headers: Mapping[str, str]) -> float:
    """Returns the seconds that a server wants to be left alone; 0 if it names none, or a date."""
    seconds = _float(headers.get("retry-after", ""))
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0


def _float(text: str | None) -> float:
    try:
        return float(text or "")
    except ValueError:
        return math.nan
