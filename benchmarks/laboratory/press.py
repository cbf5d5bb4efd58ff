"""A learner as far as weights are concerned, at the origin: `python -m benchmarks.laboratory.press SPEC`.

Publishes random bf16 weights, and then versions of them in each of which `CHANGED` of the elements moved by one code,
with the project's own press: anchors, differences to the version before, and those that span several.
"""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import torch

from benchmarks.laboratory.origin import endpoint
from benchmarks.laboratory.saying import explain_when_asked, say
from echo_queue.config import Weights
from echo_queue.records import Version
from echo_queue.store import ObjectStore
from echo_queue.weights.publishing import Press
from echo_queue.weights.signing import Signer

SIDE = 2048
"""Of a square tensor: 8 MiB."""
CHANGED = 0.02
DEVIATION = 0.02


@dataclass(frozen=True)
class Spec:
    """`elements`: of the model, rounded up to whole tensors."""

    run: str
    origin: str
    folder: str
    elements: int


def main() -> None:
    explain_when_asked()
    spec = Spec(**orjson.loads(Path(sys.argv[1]).read_bytes()))
    torch.set_num_threads(1)
    signer = Signer.generate()
    press = Press(ObjectStore(endpoint(spec.origin), spec.run), spec.run, signer, Weights(), Path(spec.folder))
    versions = enumerate(model(spec.elements))
    say("ready", public_key=signer.public_key)
    for line in sys.stdin:
        for _ in range(orjson.loads(line)["versions"]):
            number, tensors = next(versions)
            published = press.publish(Version(1, number), tensors, "bfloat16")
            further = press.further(published.version)
        routes = {route.name: route.size for route in further}
        say("published", number=number, manifest=published.manifest, digest=published.digest, further=routes)


def model(elements: int) -> Iterator[dict[str, torch.Tensor]]:
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
            places = torch.randint(len(codes), (int(CHANGED * len(codes)),), generator=dice)
            codes[places] += 1


if __name__ == "__main__":
    main()
