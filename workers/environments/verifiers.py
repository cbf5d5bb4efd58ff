"""Environments written for `verifiers` (PrimeIntellect-ai/verifiers, `MultiTurnEnv` and its kin, version 0.3).

The environment runs its own rollout and asks a client for the model's turns; `TurnClient` is that client. Stop
conditions, state and rubric are thus exactly the environment's own. The messages that the environment adds between two
turns are the observation.

- The row's columns `answer` and `info` reach the environment as the columns of a `verifiers` data set. Everything
  random must be drawn from `info["seed"]`, so that the same turns make the same session.
- Tools are not supported: they need a server that parses the model's calls, and here a turn of the model is plain text.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from echo_queue.errors import ConfigError, Problem
from echo_queue.records import Message
from workers.environments.reference import resolve

try:
    from verifiers import Client, OverlongPromptError, Response
    from verifiers.types import ResponseMessage
except ImportError:
    fix = "pip install 'echo-queue[verifiers]'"
    raise ConfigError(
        Problem("environment.kind", "verifiers needs the verifiers package here, below version 0.4", fix)
    ) from None

logging.getLogger("verifiers").setLevel(logging.WARNING)
MODEL = "policy"


class Verifiers:
    """`reference`: the function that makes the environment, `module:load_environment`; `options`: its arguments."""

    def __init__(self, reference: str, options: Mapping[str, Any]) -> None:
        self._environment = resolve(reference)(**options)
        self._loop = asyncio.new_event_loop()

    def start(self, prompt: str | list[Message], columns: Mapping[str, Any], seed: int) -> "Conversation":
        info = dict(columns.get("info") or {}) | {"seed": seed}
        row = {
            "prompt": [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt,
            "answer": str(columns.get("answer", "")),
            "info": info,
            "example_id": 0,
        }
        return Conversation(self._loop, self._environment, row)


class Conversation:
    """One rollout of the environment, which pauses while the model generates its turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, environment: Any, row: Mapping[str, Any]) -> None:
        self._loop, self._environment = loop, environment
        self._client = TurnClient(loop)
        self._rollout = loop.create_task(environment.rollout(row, self._client, MODEL, {}))
        self._seen = len(self._run_to_turn() or ())

    def reply(self, text: str) -> str | float:
        self._client.turn.set_result(text)
        asked = self._run_to_turn()
        if asked is None:
            return self._score()
        new = asked[self._seen + 1 :]
        self._seen = len(asked)
        return "\n".join(str(message.content) for message in new)

    def unfinished(self) -> float:
        """Ends the rollout as a server does that refuses a conversation which has become too long."""
        self._client.turn.set_exception(OverlongPromptError())
        self._run_to_turn()
        return self._score()

    def _run_to_turn(self) -> list[Any] | None:
        """Runs the rollout until it asks for a turn; returns the conversation so far, or None once the rollout is over.

        Raises the rollout's error, if any.
        """
        asked = self._loop.create_task(self._client.asked.get())
        both = (asked, self._rollout)
        self._loop.run_until_complete(asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED))
        if asked.done():
            return asked.result()
        asked.cancel()
        if error := self._rollout.result()["error"]:
            raise error
        return None

    def _score(self) -> float:
        state = self._rollout.result()
        self._loop.run_until_complete(self._environment.rubric.score_rollout(state))
        return float(state["reward"])


class TurnClient(Client):  # type: ignore[misc]
    """A client whose responses are given by the `Conversation`: it puts each request into `asked` and awaits `turn`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(None)
        self._loop = loop
        self.asked: asyncio.Queue[list[Any]] = asyncio.Queue()
        self.turn: asyncio.Future[str] = loop.create_future()

    async def to_native_prompt(self, messages: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        return messages, {}

    async def get_native_response(self, prompt: list[Any], *_: Any, **__: Any) -> str:
        self.turn = self._loop.create_future()
        self.asked.put_nowait(list(prompt))
        return await self.turn

    async def from_native_response(self, response: str) -> Response:
        message = ResponseMessage(content=response, finish_reason="stop", is_truncated=False)
        return Response(id="turn", created=0, model=MODEL, message=message)

    async def raise_from_native_response(self, response: str) -> None:
        return None

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    def setup_client(self, config: Any) -> None:
        return None

    async def close(self) -> None:
        return None
