"""The vLLM engine: the running samples, and vLLM, which generates them."""

from collections.abc import Collection, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING

from torch import Tensor

from echo_queue.errors import ConfigError
from echo_queue.records import Finish, PartialSample, Version
from echo_queue.weights.manifest import TensorInfo
from echo_queue.weights.tensors import matches
from workers.engines import model_folder
from workers.engines.draw import uniforms
from workers.engines.gpu_copies import GpuCopies
from workers.engines.model_folder import misfits, open_model, too_short
from workers.engines.protocol import PROBE_THREADS, SampleKey, SampleRequest, Sampling, check
from workers.engines.running_sample import RunningSample
from workers.engines.vllm.layout import renew, views
from workers.engines.vllm.metrics_endpoint import MetricsEndpoint
from workers.engines.vllm.setup import Capacity, open_vllm

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.inputs.engine import TokensInput

FINISHES: dict[str, Finish] = {"stop": "stop", "length": "length"}


class VllmEngine:
    """The `Engine` over vLLM in this process."""

    name = "vllm"

    def __init__(
        self, folder: str, version: Version, capacity: Capacity, stop_tokens: Sequence[int] = (), metrics_port: int = 0
    ) -> None:
        """`folder`: a model folder or hub name. `metrics_port`: port of vLLM's metrics (`metrics.py`); 0: none.

        `stop_tokens` end a sample, as do those that the model's generation settings name.

        Raises `ConfigError` for a model that vLLM does not serve, or whose weights could not be replaced.
        """
        self.version = version
        self.sampled = 0
        model = open_model(folder, capacity.dtype)
        problems = list(too_short(model.config, capacity.tokens))
        if problems:
            raise ConfigError(*problems)
        self._stop_tokens = sorted({*stop_tokens, *model_folder.stop_tokens(model)})
        self._vllm = open_vllm(folder, capacity, stats=metrics_port > 0)
        from workers.engines.vllm.sampler import Sampler  # imported once vLLM's environment is set

        runner = self._vllm.model_executor.driver_worker.worker.model_runner
        runner.sampler = Sampler(runner, self._sampling, self._uniform, self._take)
        try:
            self._weights = views(runner.get_model(), model.state_dict(keep_vars=True))
            self._metrics = MetricsEndpoint(metrics_port) if metrics_port else None
        except ConfigError:
            self._vllm.engine_core.shutdown()
            raise
        self._copies = GpuCopies()
        self._numbers = count()
        self._loads = 0
        self._by_key: dict[SampleKey, _VllmSample] = {}
        self._by_number: dict[str, _VllmSample] = {}
        self._by_id: dict[str, _VllmSample] = {}

    @property
    def running(self) -> int:
        return len(self._by_key)

    def add(self, requests: Sequence[SampleRequest]) -> None:
        check(requests, self._by_key)
        for request in requests:
            number = str(next(self._numbers))
            own = self._vllm.add_request(number, self._prompt(request), self._parameters(request))
            sample = _VllmSample(request, number, own)
            self._by_key[request.key] = self._by_number[number] = self._by_id[own] = sample

    def step(self) -> Mapping[SampleKey, PartialSample]:
        ended: dict[SampleKey, PartialSample] = {}
        for output in self._vllm.step() if self._by_key else ():
            sample = self._by_number[output.request_id]
            self._forget(sample)
            sample.finish = FINISHES[output.outputs[0].finish_reason]
            ended[sample.request.key] = sample.partial_sample()
        return ended

    def partials(self, tasks: Collection[str] | None = None) -> Mapping[SampleKey, PartialSample]:
        return {
            key: sample.partial_sample() for key, sample in self._by_key.items() if tasks is None or key.task in tasks
        }

    def abort(self, tasks: Collection[str]) -> None:
        aborted = [sample for key, sample in self._by_key.items() if key.task in tasks]
        self._vllm.abort_request([sample.id for sample in aborted], internal=True)
        for sample in aborted:
            self._forget(sample)

    def load(self, version: Version, tensors: Mapping[str, Tensor]) -> None:
        problems = list(misfits(self._weights, tensors, version))
        if problems:
            raise ConfigError(*problems)
        self._loads += 1
        renew(self._weights, tensors, self._copies)
        self.version = version

    def weight(self, name: str) -> Tensor:
        return self._weights[name]

    def holds(self, info: TensorInfo) -> bool:
        return matches(self.weight(info.name), info, PROBE_THREADS)

    def close(self) -> None:
        self._weights.clear()
        self._vllm.engine_core.shutdown()
        if self._metrics is not None:
            self._metrics.close()

    def _prompt(self, request: SampleRequest) -> "TokensInput":
        from vllm.inputs.engine import tokens_input

        tokens = [*request.prompt.tolist(), *request.partial_sample.tokens.tolist()]
        return tokens_input(tokens, cache_salt=str(self._loads))

    def _parameters(self, request: SampleRequest) -> "SamplingParams":
        """Returns the parameters that our sampler leaves to vLLM: when a sample ends."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            max_tokens=request.limit - len(request.partial_sample.tokens),
            stop_token_ids=self._stop_tokens,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,  # the sampler reports the tokens until then
        )

    def _sampling(self, own: str) -> Sampling:
        return self._by_id[own].request.sampling

    def _uniform(self, own: str) -> float:
        return self._by_id[own].uniform()

    def _take(self, own: str, token: int, logprob: float) -> None:
        self._by_id[own].extend([token], [logprob], self.version.number)
        self.sampled += 1

    def _forget(self, sample: "_VllmSample") -> None:
        del self._by_key[sample.request.key], self._by_number[sample.number], self._by_id[sample.id]


class _VllmSample(RunningSample):
    """A running sample. `number` is the name that we gave it, `id` the name that vLLM derived from it."""

    def __init__(self, request: SampleRequest, number: str, own: str) -> None:
        super().__init__(request)
        self.number, self.id = number, own
        self._uniforms = uniforms(request.seed, request.limit)

    def uniform(self) -> float:
        """Returns the random number of the next token."""
        return float(self._uniforms[len(self.tokens)])
