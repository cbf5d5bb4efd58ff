"""Writes the vector: what a real weight publisher puts into a real store, an announcement, and stores to be refused."""

import shutil
import tempfile
from pathlib import Path

import orjson
import torch
from torch import Tensor

from echo_queue.config import Weights
from echo_queue.connections.secrets import StoreKeys
from echo_queue.connections.storage.object_store import ObjectStore
from echo_queue.launch.servers.s3_server import S3Server
from echo_queue.records import Version
from echo_queue.weights import Announcement, Manifest, SignatureVerifier, WeightPublisher
from echo_queue.weights.manifest import manifest_key
from tests.weights.published_weights import CHUNK_KEY, SIGNER
from tests.weights.store_vector.departures import DEPARTURES, RUN

HERE = Path(__file__).parent


def tensors(number: int) -> dict[str, Tensor]:
    wave = torch.sin(torch.arange(3_000) * 0.37) * 0.02
    wave[:: 10 - number] *= 1 + 0.02 * number
    return {
        "wave": wave.view(30, 100),
        "tied": wave.view(30, 100),
        "steps": torch.arange(9),
        "scalar": torch.tensor(0.5),
    }


def main() -> None:
    shutil.rmtree(HERE / "weights", ignore_errors=True)
    with tempfile.TemporaryDirectory() as directory:
        server = S3Server(Path(directory), StoreKeys("VECTORVECTORVECTORVE", "vector-vector"))
        server.start()
        try:
            store = ObjectStore(server.endpoint("vector"), RUN)
            store.create_bucket()
            settings = Weights(encrypt=True, chunk_bytes=1_024, part_bytes=8_192)
            weight_publisher = WeightPublisher(store, RUN, SIGNER, settings, chunk_key=CHUNK_KEY)
            for number in range(3):
                weight_publisher.publish(Version(1, number), tensors(number), "bfloat16")
                weight_publisher.further(Version(1, number))
            for stored in store.list("weights/"):
                path = HERE / stored.key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(store.get(stored.key))
        finally:
            server.stop()
    keys = {"run": RUN, "public_key": SIGNER.public_key, "chunk_key": CHUNK_KEY.hex()}
    announce()
    write_refused()
    (HERE / "keys.json").write_bytes(orjson.dumps(keys, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def announce() -> None:
    """The first part of the newest version's own route, as it was announced before that version stood."""
    key = manifest_key(Version(1, 2))
    body = SignatureVerifier(SIGNER.public_key).open((HERE / key).read_bytes(), key)
    route = Manifest.decode(body, key).route
    first = Announcement(RUN, route.version, route.base, route.base_root, 0, route.parts[0])
    (HERE / "announced.json").write_bytes(SIGNER.sign(first.encode()))


def write_refused() -> None:
    for what, store in DEPARTURES.items():
        for key, data in store.items():
            path = HERE / "refused" / what / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


if __name__ == "__main__":
    main()
