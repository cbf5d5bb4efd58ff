"""New weights reach a GPU through blocks of pinned memory, whole and in order. The GPU is a stand-in."""

from collections.abc import Iterator

import pytest
import torch

from echo_queue.weights.delta.codes import dtype_name
from echo_queue.weights.manifest import PIECE_BYTES, TensorInfo
from echo_queue.weights.tensors import digest_of, matches
from tests.learner.gpu_stand_in import GPU, OnGpu, StandInStream, stand_in
from workers.engines import gpu_copies


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gpu_copies, "BLOCK_BYTES", 32)
    monkeypatch.setattr(gpu_copies, "THREADS", 2)
    with stand_in(monkeypatch), torch.cuda.stream(StandInStream(GPU)):  # type: ignore[arg-type]
        yield


def test_each_block_is_written_to_again_only_once_its_copy_was_made() -> None:
    sources = [torch.arange(100.0) + 1, torch.arange(7, dtype=torch.bfloat16), torch.ones(3, 5), torch.zeros(0)]
    copies = gpu_copies.GpuCopies()
    for factor in (1, 2):
        targets = [torch.zeros_like(source) for source in sources]
        copies.to_gpu([(OnGpu.of(one), factor * source) for one, source in zip(targets, sources, strict=True)])
        assert all(torch.equal(one, factor * source) for one, source in zip(targets, sources, strict=True))
        assert 0 < copies._free.qsize() <= gpu_copies.THREADS


def test_what_is_stored_in_another_order_on_the_gpu_is_copied_too() -> None:
    target, source = torch.zeros(5, 3), torch.arange(15.0).reshape(3, 5)
    gpu_copies.GpuCopies().to_gpu([(OnGpu.of(target.t()), source)])
    assert torch.equal(target.t(), source)


def test_without_weights_on_a_gpu_no_memory_is_pinned() -> None:
    copies = gpu_copies.GpuCopies()
    copies.to_gpu([])
    assert copies._free.empty()


@pytest.mark.parametrize("threads", [1, 4])
def test_a_large_tensor_on_a_gpu_is_probed_whole(threads: int) -> None:
    served = torch.arange(5 * PIECE_BYTES // 8).float()
    info = TensorInfo("head", dtype_name(served), tuple(served.shape), digest_of(served))
    assert matches(OnGpu.of(served), info, threads)
    for place in (0, len(served) // 2, len(served) - 1):
        other = served.clone()
        other[place] += 1
        assert not matches(OnGpu.of(other), info, threads)
        assert not matches(other, info, threads)
