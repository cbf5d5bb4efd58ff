"""The client of a vLLM server's HTTP interface.

Nothing is tried twice here. `ServerAway`: the server did not answer, or not to the end. `ServerRefused`: it refused.
"""

from typing import Any, NamedTuple

import httpx2
import orjson

from echo_queue.errors import EchoQueueError, Problem

WHERE = "rollout.http.url"
CONNECT_S = 5.0
ANSWER_S = 10.0
"""Longest silence after a request that costs the server nothing."""
GATEWAY = (502, 503, 504)
"""Status codes that a gateway answers for a server that is not up."""
START = (
    "VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --enable-scale-out --logprobs-mode processed_logprobs "
    "--max-model-len TOKENS"
)
"""The command that starts a server (docs/engines.md)."""


class ServerAway(EchoQueueError):
    """The server did not answer, or not to the end."""


class ServerRefused(EchoQueueError):
    """The server refused a request."""


class StreamChunk(NamedTuple):
    """Tokens that arrived together; in the last chunk also how the stream ended and which labels its tokens had."""

    tokens: list[int]
    logprobs: list[float]
    finish: str | None
    labels: frozenset[str]


class ServerSettings(NamedTuple):
    """The settings with which a server was started."""

    logprobs_mode: str
    max_model_len: int
    dtype: str


class Server:
    """`silence_s`: the longest time that the server may take to load weights. Any thread may call it."""

    def __init__(self, url: str, key: str | None, silence_s: float) -> None:
        self.url = url.rstrip("/")
        self._silence_s = silence_s
        self.headers = {"authorization": f"Bearer {key}"} if key else {}
        self._http = httpx2.Client(headers=self.headers, trust_env=False)

    def settings(self) -> ServerSettings:
        """Asks for the server's settings. Raises `ServerRefused` if it is no vLLM server in development mode."""
        answer = self._ask("GET", "/server_info?config_format=json")
        try:
            model = answer["vllm_config"]["model_config"]
            return ServerSettings(model["logprobs_mode"], model["max_model_len"], model["dtype"].removeprefix("torch."))
        except (KeyError, TypeError, AttributeError):
            raise ServerRefused(Problem(WHERE, f"{self.url} is not a vLLM server", f"start one with {START}")) from None

    def label(self) -> str:
        """Asks for the label of the weights that the server serves."""
        return str(self._ask("GET", "/weight_info")["weight_version"])

    def set_label(self, label: str) -> None:
        """Gives the weights that the server serves a label."""
        self._ask("POST", "/update_weight_version", {"new_version": label})

    def reload(self, folder: str) -> None:
        """Makes the server load the weights in `folder`, a path on the server's machine."""
        call = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        self._ask("POST", "/collective_rpc", call, self._silence_s)

    def checksums(self) -> dict[str, str]:
        """Asks for the SHA-256 of each parameter served, by its rank and name: `tp0:model.norm.weight`."""
        answer = self._ask("POST", "/weight_checker", {"action": "checksum"}, self._silence_s)
        return {str(name): str(digest) for name, digest in answer["checksums"].items()}

    def abort(self, requests: list[str]) -> None:
        """Makes the streams of these requests end soon, with the tokens drawn until then. Unknown ones are ignored."""
        names = [f"generate-tokens-{request}" for request in requests]  # the server's own names
        self._ask("POST", "/inference/v1/abort_requests", {"request_ids": names})

    def chunk(self, line: str) -> StreamChunk | None:
        """Parses a line of a stream; returns None for one without tokens. Raises `ServerAway` for an error message."""
        if not line.startswith("data: ") or line.startswith("data: [DONE]"):
            return None
        message = self._json(line[6:])
        try:
            (choice,) = message["choices"]
            logprobs = [one["logprob"] for one in choice["logprobs"]["content"] or ()]
            labels = frozenset(span["version"] for span in choice["weight_versions"] or ())
            return StreamChunk(choice["token_ids"] or [], logprobs, choice["finish_reason"], labels)
        except (KeyError, TypeError, ValueError):
            raise self.away(f"sends {line[:200]!r} instead of tokens") from None

    def away(self, why: str) -> ServerAway:
        """Makes the error for a server that did not answer; `why` completes a sentence about it."""
        return ServerAway(Problem(WHERE, f"{self.url} {why}", "check the server's log, and start it again"))

    def refusal(self, path: str, status: int, body: bytes) -> EchoQueueError:
        """Returns the error for an answer whose status is not 200."""
        reason = _reason(body)
        if status in GATEWAY or (status >= 500 and "EngineCore" in reason):
            return self.away(f"has lost its engine: {reason}")
        what = f"{self.url}{path.partition('?')[0]} answers {status}: {reason}"
        return ServerRefused(Problem(WHERE, what, f"start the server with {START}"))

    def close(self) -> None:
        self._http.close()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None, silence_s: float = ANSWER_S) -> Any:
        """Sends a request and returns the JSON of the answer. Raises `ServerAway` or `ServerRefused`."""
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
            raise self.away(f"sends {text[:80]!r}, which is not JSON") from None


def _reason(body: bytes) -> str:
    try:
        answer = orjson.loads(body)
        return str(answer.get("error", answer)["message"] if "error" in answer else answer)
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        return repr(body[:200])
