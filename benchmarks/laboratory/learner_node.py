"""The part of a learner that publishes weights: `python -m benchmarks.laboratory.learner_node SPEC`.

It publishes random bf16 weights, and then versions in each of which a share `CHANGED` of the elements moved by one
code, with the product's own weight publisher: anchors, deltas to the version before, and deltas that span several
versions. With a queue it moves the pointer as well, and all elements move, so that a delta is large enough to be timed.
"""

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import torch

from benchmarks.laboratory.events import dump_stacks_on_signal, report
from benchmarks.laboratory.origin import client, endpoint
from echo_queue.config import Weights
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.queue import Caller, LearnerQueue, RunRules
from echo_queue.records import Version
from echo_queue.weights.publisher import WeightPublisher
from echo_queue.weights.signatures import Signer
from learner.publication.announcer import Announcer

SIDE = 2048
"""The side of a square tensor of 8 MiB."""
CHANGED = 0.02
DEVIATION = 0.02
FURTHEST = 100
"""The largest move in codes where all elements move, which costs about a byte for each."""


@dataclass(frozen=True)
class Spec:
    """The settings. `elements`: size of the model, rounded up to whole tensors. `redis`: where the pointer moves, if at
    all."""

    run: str
    origin: str
    elements: int
    redis: str = ""
    announces: bool = False
    part_bytes: int = Weights().part_bytes


def main() -> None:
    dump_stacks_on_signal()
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
        announce=announcer.announce if announcer is not None else lambda announcement, document: None,
    )
    lineage = queue.resume(RunRules(s=1, batch=1)).lineage if queue is not None else 1
    versions = enumerate(model(spec.elements, all_move=queue is not None))
    report("ready", public_key=signer.public_key)
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
        report(
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
    """Yields the same tensors without end, a little changed each time."""
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
