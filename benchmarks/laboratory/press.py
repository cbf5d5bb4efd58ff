"""A learner as far as weights are concerned: `python -m benchmarks.laboratory.weight_publisher SPEC`.

Publishes random bf16 weights, and then versions of them in each of which `CHANGED` of the elements moved by one code,
with the project's own press: anchors, differences to the version before, and those that span several. With a queue it
moves the pointer as well, and all elements move, so that a difference has bytes enough to be timed.
"""

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import torch

from benchmarks.laboratory.origin import client, endpoint
from benchmarks.laboratory.saying import explain_when_asked, say
from echo_queue.config import Weights
from echo_queue.queue import Caller, LearnerQueue
from echo_queue.records import Version
from echo_queue.storage.object_store import ObjectStore
from echo_queue.weights.publisher import WeightPublisher
from echo_queue.weights.signatures import Signer
from learner.publication.announcer import Announcer

SIDE = 2048
"""Of a square tensor: 8 MiB."""
CHANGED = 0.02
DEVIATION = 0.02
FURTHEST = 100
"""Codes by which elements move where all do: about a byte for each."""


@dataclass(frozen=True)
class Spec:
    """`elements`: of the model, rounded up to whole tensors. `redis`: where the pointer is moved, if anywhere."""

    run: str
    origin: str
    folder: str
    elements: int
    redis: str = ""
    announces: bool = False
    part_bytes: int = Weights().part_bytes


def main() -> None:
    explain_when_asked()
    spec = Spec(**orjson.loads(Path(sys.argv[1]).read_bytes()))
    torch.set_num_threads(1)
    signer = Signer.generate()
    queue = LearnerQueue(Caller(client(Path(spec.redis)), spec.run)) if spec.redis else None
    announcer = _announcer(queue) if queue is not None and spec.announces else None
    weight_publisher = WeightPublisher(
        ObjectStore(endpoint(spec.origin), spec.run),
        spec.run,
        signer,
        Weights(part_bytes=spec.part_bytes),
        Path(spec.folder),
        announce=announcer.announce if announcer is not None else lambda announcement, document: None,
    )
    lineage = queue.resume().lineage if queue is not None else 1
    versions = enumerate(model(spec.elements, all_move=queue is not None))
    say("ready", public_key=signer.public_key)
    for line in sys.stdin:
        for _ in range(orjson.loads(line)["versions"]):
            number, tensors = next(versions)
            began_s, before = time.monotonic(), weight_publisher.stored.total()
            published = weight_publisher.publish(Version(lineage, number), tensors, "bfloat16")
            size = weight_publisher.stored.total() - before
            if queue is not None:
                queue.publish(published)
            pointed_s = time.monotonic()
            further = weight_publisher.further(published.version) if queue is None else []
        say(
            "published",
            number=number,
            manifest=published.manifest,
            digest=published.digest,
            further={route.name: route.size for route in further},
            size=size,
            began_s=began_s,
            pointed_s=pointed_s,
        )


def _announcer(queue: LearnerQueue) -> Announcer:
    announcer = Announcer(queue)
    announcer.start()
    return announcer


def model(elements: int, all_move: bool) -> Iterator[dict[str, torch.Tensor]]:
    """The same tensors for ever, each time a little changed."""
    dice = torch.Generator().manual_seed(0)
    count = math.ceil(elements / SIDE**2)
    tensors = {
        f"layers.{place}.weight": (DEVIATION * torch.randn(SIDE, SIDE, generator=dice)).bfloat16()
        for place in range(count)
    }
    while True:
        yield tensors
        for tensor in tensors.values():
            codes = tensor.view(torch.int16).flatten()
            if all_move:
                codes += torch.randint(-FURTHEST, FURTHEST + 1, codes.shape, generator=dice, dtype=torch.int16)
                continue
            places = torch.randint(len(codes), (int(CHANGED * len(codes)),), generator=dice)
            codes[places] += 1


if __name__ == "__main__":
    main()
