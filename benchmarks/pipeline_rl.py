"""The way of a group through Redis in PipelineRL, another trainer that puts its groups into Redis streams.

Written anew from the public repository (github.com/ServiceNow/PipelineRL, `pipelinerl/streams.py`, `actor.py` and
`rollouts.py`): its actor dumps each sample of a group from a pydantic model, pickles the group, and appends it to a
stream of about a million entries at most, one command for each group. Its preprocessor reads the stream one entry at a
time and unpickles it. There is no acknowledgement and no lease, nothing is removed, and the server has no append-only
file. The second stream, from its preprocessor to its trainer, is left out, so a whole group costs it more than this.
"""

import pickle
import time
from collections.abc import Sequence
from typing import Any

import redis
from pydantic import BaseModel, Field

from echo_queue.records import Group

MOST_ENTRIES = 1_000_000
BLOCK_MS = 100
IGNORED = -100
"""The label of a token that no update trains."""


class Text(BaseModel):
    """A sample with the fields that PipelineRL's actor sends."""

    text: str
    n_predicted: int
    reward: float = 0.0
    logprobs: list[float] = Field(default_factory=list)
    ref_logprobs: list[float] = Field(default_factory=list)
    input_ids: list[int] = Field(default_factory=list)
    labels: list[int] = Field(default_factory=list)
    group_id: str | None = None
    finished: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0
    visual_features: dict[str, Any] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


def texts_of(group: Group) -> list[Text]:
    """Returns the group's samples as PipelineRL's rollouts do, without their text: its length would be arbitrary."""
    prompt = group.prompt.tolist()
    return [
        Text(
            text="",
            n_predicted=len(sample.tokens),
            reward=sample.reward,
            logprobs=sample.logprobs.tolist(),
            input_ids=prompt + sample.tokens.tolist(),
            labels=[IGNORED] * len(prompt) + sample.tokens.tolist(),
            group_id=group.task,
            finished=sample.finish == "stop",
            prompt_tokens=len(prompt),
            output_tokens=len(sample.tokens),
            metadata={"model_version": group.newest, "rollout_index": number},
        )
        for number, sample in enumerate(group.samples)
    ]


def seconds(client: "redis.Redis", stream: str, groups: Sequence[list[Text]], batch: int) -> float:
    """Returns the time for these groups from the actor to the preprocessor, by one client, `batch` by `batch`."""
    last: Any = 0
    begun = time.perf_counter()
    for first in range(0, len(groups), batch):
        sent = groups[first : first + batch]
        for place, group in enumerate(sent, first):
            data = pickle.dumps([text.model_dump() for text in group])
            client.xadd(stream, {"index": place, "data": data}, maxlen=MOST_ENTRIES, approximate=True)
        for place in range(first, first + len(sent)):
            read: Any = client.xread({stream: last}, count=1, block=BLOCK_MS)
            ((_, ((last, entry),)),) = read
            if int(entry[b"index"]) != place or len(pickle.loads(entry[b"data"])) != len(groups[place]):
                raise SystemExit(f"the stream lost group {place}")
    took = time.perf_counter() - begun
    client.delete(stream)
    return took
