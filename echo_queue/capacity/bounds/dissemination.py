"""What a publication costs in time and bytes: from its form (snapshot or delta), the links, and who serves it.

The bytes and the rates of encoding and applying are those that `echo_queue.capacity.estimate.transfer` has from
measurements of bfloat16 weights with `weights.coding = "fast"`.
"""

from typing import NamedTuple

from echo_queue.capacity.estimate.transfer import (
    ANCHOR_BYTES,
    APPLY_BYTES_PER_S,
    ENCODE_BYTES_PER_S,
    WORTHWHILE,
    bytes_per_change,
)
from echo_queue.capacity.fleet_file import Form, Weights

BYTES = 2
"""The size of a bfloat16 value."""
BITS_PER_GBIT_BYTE = 8e-9


class Dissemination(NamedTuple):
    """One way to bring weights to workers. `bytes`: of a publication. `codec_s`: encoding and applying it.

    `next_worker_s`: what each further worker adds to the time of the last one.
    """

    form: Form
    peers: bool
    bytes: float
    codec_s: float
    next_worker_s: float

    def broadcast_s(self, link_gbit: float) -> float:
        """Returns T_bcast of a first worker. `link_gbit`: the slowest link on its way, the learner's among them.

        Workers fetch what is announced while it is uploaded, so the bytes take one crossing (docs/weights.md).
        """
        return self.codec_s + seconds(self.bytes, link_gbit)


def seconds(size: float, gbit: float) -> float:
    """Returns the time of so many bytes over a link of so many Gbit/s."""
    return size * BITS_PER_GBIT_BYTE / gbit


def publication_bytes(weights: Weights, form: Form) -> float:
    """Returns the bytes of a publication. A delta that is hardly smaller than a snapshot is published as one."""
    snapshot = ANCHOR_BYTES["bfloat16"] * weights.parameters
    if form == "snapshot":
        return snapshot
    change = weights.change.value
    delta = bytes_per_change(change, "fast") * change * weights.parameters
    return delta if delta < WORTHWHILE * snapshot else snapshot


def dissemination(weights: Weights, form: Form, *, peers: bool, slowest_gbit: float) -> Dissemination:
    """Returns the way of the weights in this form. `slowest_gbit`: the slowest link through which a chain may go.

    A chain forwards chunks as they arrive, so that each worker adds the time of one: F/B · (1 + (N − 1) / chunks).
    Readers of a store with a limit take turns: each adds the whole publication at the store's rate.
    """
    size = publication_bytes(weights, form)
    codec_s = BYTES * weights.parameters * (1 / ENCODE_BYTES_PER_S["fast"] + 1 / APPLY_BYTES_PER_S["fast"])
    if peers:
        further_s = seconds(min(weights.chunk_bytes, size), slowest_gbit)
    else:
        further_s = seconds(size, weights.store_gbit.value) if weights.store_gbit else 0.0
    return Dissemination(form, peers, size, codec_s, further_s)
