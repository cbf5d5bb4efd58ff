"""What is said to a vLLM server, and what it answers.

Nothing is tried twice here. `Away`: it did not answer, or not to the end. `Refused`: it answered that it will not.
"""

from typing import Any, NamedTuple

import httpx2
import orjson

from echo_queue.errors import EchoQueueError, Problem

WHERE = "rollout.http.url"
CONNECT_S = 5.0
ANSWER_S = 10.0
"""Longest silence after a question that costs the server nothing."""
GATEWAY = (502, 503, 504)
"""What is answered for a server that is not there yet, or no longer."""
START = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs "
    "--max-model-len TOKENS"
)
"""How to start a server (docs/engines.md)."""


class Away(EchoQueueError):
    """The server did not answer, or not to the end."""


class Refused(EchoQueueError):
    """The server will not do it."""


class Chunk(NamedTuple):
    """Tokens that came together, and if they are the last ones, how the stream ended and what labels its tokens had."""

    tokens: list[int]
    logprobs: list[float]
    finish: str | None
    labels: frozenset[str]


class Settings(NamedTuple):
    """What a server was started with."""

    logprobs_mode: str
    max_model_len: int
    dtype: str


class Server:
    """`silence_s`: for so long may it be silent while it loads. Any thread may ask."""

    def __init__(self, url: str, key: str | None, silence_s: float) -> None:
        self.url = url.rstrip("/")
        self._silence_s = silence_s
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.Client(headers=self.headers, trust_env=False)

    def settings(self) -> Settings:
        said = self._ask("GET", "/server_info?config_format=json")
        try:
            model = said["vllm_config"]["model_config"]
            return Settings(model["logprobs_mode"], model["max_model_len"], model["dtype"].removeprefix("torch."))
        except (KeyError, TypeError, AttributeError):
            raise Refused(Problem(WHERE, f"{self.url} is no vLLM server", f"start one with {START}")) from None

    def label(self) -> str:
        """Of the weights that it serves."""
        return str(self._ask("GET", "/weight_info")["weight_version"])

    def set_label(self, label: str) -> None:
        self._ask("POST", "/update_weight_version", {"new_version": label})

    def reload(self, folder: str) -> None:
        """Takes the weights in `folder`, a path on its own machine."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        self._ask("POST", "/collective_rpc", call, self._silence_s)

    def checksums(self) -> dict[str, str]:
        """SHA-256 of each parameter as it is served, by the name of its rank and its own: `tp0:model.norm.weight`."""
        answer = self._ask("POST", "/weight_checker", {"action": "checksum"}, self._silence_s)
        return {str(name): str(digest) for name, digest in answer["checksums"].items()}

    def abort(self, requests: list[str]) -> None:
        """Their streams end soon, with what was drawn until then. Unknown ones are ignored."""
        names = [f"generate-tokens-{request}" for request in requests]  # as the server calls them
        self._ask("POST", "/inference/v1/abort_requests", {"request_ids": names})

    def chunk(self, line: str) -> Chunk | None:
        """What a line of a stream says; None: nothing. Raises `Away` for an error in place of tokens."""
        if not line.startswith("data: ") or line.startswith("data: [DONE]"):
            return None
        said = self._json(line[6:])
        try:
            (choice,) = said["choices"]
            logprobs = [one["logprob"] for one in choice["logprobs"]["content"] or ()]
            labels = frozenset(span["version"] for span in choice["weight_versions"] or ())
            return Chunk(choice["token_ids"] or [], logprobs, choice["finish_reason"], labels)
        except (KeyError, TypeError, ValueError):
            raise self.away(f"says {line[:200]!r} in place of tokens") from None

    def away(self, why: str) -> Away:
        return Away(Problem(WHERE, f"{self.url} {why}", "see its own log, and start it again"))

    def refusal(self, path: str, status: int, body: bytes) -> EchoQueueError:
        """What an answer that is not 200 means."""
        said = _reason(body)
        if status in GATEWAY or (status >= 500 and "EngineCore" in said):
            return self.away(f"has lost its engine: {said}")
        what = f"{self.url}{path.partition('?')[0]} answers {status}: {said}"
        return Refused(Problem(WHERE, what, f"start the server with {START}"))

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, silence_s: float = ANSWER_S) -> Any:
        """Raises `Away` or `Refused`."""
        timeout = httpx2.Timeout(silence_s, connect=CONNECT_S)
        try:
            response = self._http.request(method, f"{self.url}{path}", json=body, timeout=timeout)
        except httpx2.HTTPError as error:
            raise self.away(f"does not answer: {error!r}") from error
        if response.status_code != 200:
            raise self.refusal(path, response.status_code, response.content)
        return self._json(response.content or b"null")

    def _json(self, text: str | bytes) -> Any:
        try:
            return orjson.loads(text)
        except orjson.JSONDecodeError:
            raise self.away(f"says {text[:80]!r}, which is not JSON") from None


def _reason(body: bytes) -> str:
    try:
        said = orjson.loads(body)
        return str(said.get("error", said)["message"] if "error" in said else said)
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return repr(body[:200])
