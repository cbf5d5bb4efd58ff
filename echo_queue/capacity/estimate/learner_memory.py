"""The memory of the learner on one of its devices.

The state follows from `learner.model.policy`. The activations are the tensors that autograd keeps for the backward
pass of `learner.model.scorer`, without kernels that fuse anything: `tests/capacity/estimate/test_learner_memory.py`
counts them and gets the same number of bytes.

An update has four phases, whose bytes beside the state are never there together: the head's backward pass, that of a
layer, the reduction of the embeddings' and the head's gradient at its end, and the optimizer step. The peak is that of
the largest.
"""

from dataclasses import dataclass, replace
from typing import Literal

from echo_queue.capacity.estimate.lora import LoraShape, lora_shape, trained_parameters
from echo_queue.config import Config
from echo_queue.documents import printed
from echo_queue.models.shape import FLASH_STEP, ModelShape, flash_width

BYTES = {"float32": 4, "bfloat16": 2}
FLOAT32 = 4
POSITION = 4
LOGITS_AT_ONCE = {"cpu": 1 << 24, "cuda": 1 << 28}
"""`learner.model.scorer.LOGITS_AT_ONCE`, which this package must not import."""
MERGED_AT_ONCE = {"cpu": 1 << 20, "cuda": 1 << 24}
"""`echo_queue.weights.lora.BLOCK_ELEMENTS`, which this package must not import."""
MOMENTS_AT_ONCE = 1 << 26
"""`learner.model.optimizer.AT_ONCE`, which this package must not import."""
CONTEXT = 600_000_000
"""Bytes of a GPU that a process takes before any tensor: the driver's context and the kernels of torch. This is what
nvidia-smi shows of a process with torch on Hopper, about; it is assumed, not measured here."""
FRAGMENTS = 0.1
"""The share of what comes and goes that the allocator holds besides: rests of blocks, and blocks of another stream.
The allocator grows its blocks (`expandable_segments`, torch's "CUDA semantics"). It is assumed, not measured."""
LOGIT_COPIES = 3
"""Copies of the logits at the peak of the head's backward pass: log softmax, its gradient, and the logits' gradient."""


@dataclass(frozen=True)
class MicroBatchShape:
    """A micro-batch of full length: `prompts` of `prompt_tokens` each, without their last, and `rows` of samples."""

    prompts: int
    prompt_tokens: int
    rows: int
    sample_tokens: int

    @property
    def tokens(self) -> int:
        return self.prompts * self.prompt_tokens + self.rows * self.sample_tokens

    @property
    def drawn(self) -> int:
        return self.rows * self.sample_tokens


def micro_batch_shape(config: Config) -> MicroBatchShape:
    """Returns the micro-batch that `learner.batch` makes of prompts and samples that all are as long as the model
    allows. One sample is its least."""
    prompt, sample = config.model.max_prompt_tokens - 1, config.model.max_new_tokens
    rows = max(1, min(config.rollout.group_size, (config.learner.micro_tokens - prompt) // sample))
    pieces = max(1, min(config.learner.batch_groups, config.learner.micro_tokens // (prompt + rows * sample)))
    return MicroBatchShape(pieces, prompt, pieces * rows, sample)


@printed("state", "peak", "checkpointed_peak", "needed", "checkpointed_needed")
@dataclass(frozen=True)
class LearnerMemory:
    """Bytes on one device. The state is there always, the rest at the peak of an update."""

    base: int
    """With LoRA, the frozen weights in the type in which the model computes."""
    masters: int
    moments: int
    gradients: int
    compute_copy: int
    """The weights that the passes compute with, and their gradients, where they are not the masters themselves."""
    reference: int
    """The base model, with `learner.kl` above 0. With LoRA the learner has it in any case."""
    past: int
    """What the last S updates replaced, with the anchor `old` (`learner.model.past_versions`). The masters that a
    visit to older versions keeps meanwhile take no more than the gradients do, which are not there then."""
    snapshot: int
    """The copy of the weights that is being published."""
    newest: int
    """The newest published version, from which the next delta starts, in host memory: nothing of a GPU's."""
    checkpoint: int
    """The copy of masters and moments that is being saved, in host memory: nothing of a GPU's."""
    activations: int
    checkpointed_activations: int
    """The same with activation checkpointing of every layer, while one layer is computed again."""
    recomputed: int
    """The layer that is computed again keeps so many of these, after the head's backward pass."""
    layer_gradients: int
    """The gradients that a layer's backward pass holds beside its activations (`layer_gradients`)."""
    reduction: int
    """The float32 sums of a layer's gradient, before and after they are shared (`_reduction`)."""
    final_reduction: int
    """The same of the embeddings and the head at the end of the backward pass. Neither activations nor the weights that
    the passes compute with are there then."""
    logits: int
    head_gradient: int
    """The head's gradient while those of its pieces are added up in float32, beside the gradient that is kept."""
    replaced: int
    """With the anchor `old`, a copy of the published form, which an optimizer step is compared with. No activations
    are there then."""
    context: int
    """A process takes so many bytes of a GPU before any tensor."""
    host: int
    """Beside a GPU: the host memory of the newest version, of the checkpoint's copy, and of what is offloaded."""

    @property
    def state(self) -> int:
        trained = self.masters + self.moments + self.gradients
        return self.base + trained + self.compute_copy + self.reference + self.past + self.copies

    @property
    def copies(self) -> int:
        """The copies that are published and saved beside training."""
        return self.snapshot + self.newest + self.checkpoint

    @property
    def offloaded(self) -> "LearnerMemory":
        """The same GPU with `learner.offload`."""
        moments = min(self.moments, 2 * FLOAT32 * MOMENTS_AT_ONCE)
        host = self.host + self.moments - moments + self.snapshot
        return replace(self, moments=moments, snapshot=0, host=host)

    @property
    def peak(self) -> int:
        """Returns the most bytes that tensors take."""
        return self._peak(self.activations)

    @property
    def checkpointed_peak(self) -> int:
        return self._peak(self.checkpointed_activations, self.recomputed)

    @property
    def needed(self) -> int:
        """Returns the bytes that a device must have: the peak, the context, and what the allocator cannot use."""
        return self._needed(self.peak)

    @property
    def checkpointed_needed(self) -> int:
        return self._needed(self.checkpointed_peak)

    def _peak(self, activations: int, recomputed: int = 0) -> int:
        head = activations - recomputed + self.logits + self.head_gradient
        layer = activations + self.layer_gradients + self.reduction
        return self.state + max(head, layer, self.final_reduction - self.compute_copy, self.replaced)

    def _needed(self, peak: int) -> int:
        if not self.context:
            return peak
        stays = self.base + self.masters + self.moments + self.gradients + self.reference
        return peak + self.context + round(FRAGMENTS * (peak - stays))


def learner_memory(
    config: Config, shape: ModelShape, devices: int = 1, kind: Literal["cpu", "cuda"] = "cpu", change: float = 0.01
) -> LearnerMemory:
    """Returns the memory of each of `devices`: float32 masters, two moments and gradients are 16 bytes a parameter.

    With LoRA these are the adapters' parameters, beside the frozen weights.

    Several devices share the state equally (fully sharded data parallelism: ZeRO stage 3, arXiv 1910.02054), and each
    of them has two layers, the embeddings and the head in full at a time. `micro_tokens` is the size of each device's
    micro-batch. `change`: the share of the published values that an update of all weights replaces in bfloat16.
    """
    width, whole = BYTES[config.model.dtype], -(-shape.total // devices)
    batch, lora = micro_batch_shape(config), lora_shape(config.model.lora, shape)
    share = -(-trained_parameters(config.model.lora, shape) // devices)
    kept_versions = config.staleness.s if config.learner.needs_old else 0
    newest, checkpoint = width * share, 3 * FLOAT32 * share
    sharded = devices > 1 or width < FLOAT32
    found = LearnerMemory(
        base=width * whole if lora else 0,
        masters=FLOAT32 * share,
        moments=2 * FLOAT32 * share,
        gradients=FLOAT32 * share,
        compute_copy=_compute_copy(shape, width, devices, lora, kind),
        reference=width * whole if config.learner.kl and not lora else 0,
        past=round(kept_versions * share * _replaced_bytes(width, change, lora)),
        snapshot=width * share,
        newest=newest if kind == "cpu" else 0,
        checkpoint=checkpoint if kind == "cpu" else 0,
        activations=activations(shape, batch, width, kind, lora=lora),
        checkpointed_activations=activations(shape, batch, width, kind, lora=lora, checkpointed=True),
        recomputed=_recomputed(shape, batch, width, kind, lora),
        layer_gradients=layer_gradients(shape, batch, width, kind),
        reduction=_reduction(shape.largest_layer, devices) if sharded and not lora else 0,
        final_reduction=_reduction(_root(shape), devices) if sharded and not lora else 0,
        logits=logits(shape, batch, width, kind),
        head_gradient=0 if lora else (FLOAT32 + width) * shape.embedding,
        replaced=width * share if kept_versions else 0,
        context=CONTEXT if kind == "cuda" else 0,
        host=newest + checkpoint if kind == "cuda" else 0,
    )
    return found.offloaded if config.learner.offload and kind == "cuda" else found


def _replaced_bytes(width: int, change: float, lora: LoraShape | None) -> float:
    """Returns the bytes of a parameter in a reverse delta: a value and a position for each one that is replaced.

    Positions are left out where that takes no more: where all values change, as in float32 and among adapters.
    """
    return width if width == FLOAT32 or lora else min(width, change * (width + POSITION))


def _root(shape: ModelShape) -> int:
    """Returns the parameters of the embeddings and the head, which are whole throughout an update."""
    return shape.embedding * (1 if shape.tied else 2)


def _reduction(parameters: int, devices: int) -> int:
    """Returns the bytes in which FSDP adds up a gradient of so many parameters: all of it in float32, and this device's
    share of the sum (`foreach_reduce` of torch's `_fsdp_collectives.py`). The one before is gone by then."""
    return FLOAT32 * (parameters + -(-parameters // devices))


def _compute_copy(
    shape: ModelShape, width: int, devices: int, lora: LoraShape | None, kind: Literal["cpu", "cuda"]
) -> int:
    """One device computes in float32 with the masters themselves. Otherwise the embeddings, the head and two layers are
    whole at a time, one of them also as it was gathered, and the gradients of the head and of one layer.

    With LoRA they are frozen, and there only with several devices. One merged matrix exists at a time, and a part of it
    in float32, twice.
    """
    if lora:
        gathered = 2 * shape.largest_layer + _root(shape) if devices > 1 else 0
        return width * (gathered + lora.largest) + 2 * FLOAT32 * min(lora.largest, MERGED_AT_ONCE[kind])
    if devices == 1 and width == FLOAT32:
        return 0
    return width * (4 * shape.largest_layer + _root(shape) + shape.embedding)


def activations(
    shape: ModelShape,
    batch: MicroBatchShape,
    width: int,
    kind: Literal["cpu", "cuda"] = "cpu",
    *,
    lora: LoraShape | None = None,
    checkpointed: bool = False,
) -> int:
    """Returns the bytes that autograd keeps of a micro-batch, besides the logits; `width`: bytes of the compute type.

    With checkpointing (arXiv 1604.06174) the inputs of all layers are kept, and the activations of one. With LoRA the
    gradient ends at the first norm, which keeps nothing.
    """
    dense = layer_activations(shape, batch, width, kind, lora)
    sparse = _sparse_activations(shape, batch, width, dense)
    layers = (shape.layers - shape.sparse_layers) * dense + shape.sparse_layers * sparse
    if checkpointed:
        again = _recomputed(shape, batch, width, kind, lora)
        layers = shape.layers * batch.tokens * shape.hidden * width + again
    # The last norm keeps its input in float32, the result of the division, and 1 / RMS; rotation keeps sine and cosine.
    norm = batch.tokens * (shape.hidden * (FLOAT32 + width) + FLOAT32)
    found = layers + norm + 2 * batch.tokens * shape.head_dim * width + batch.drawn * shape.hidden * width
    if lora is None:
        return found
    pieces = batch.drawn * shape.vocabulary > LOGITS_AT_ONCE[kind]
    unneeded = batch.tokens * shape.hidden * width + (0 if pieces else batch.drawn * shape.hidden * width)
    first_norm = 0 if checkpointed else batch.tokens * (shape.hidden + 1) * FLOAT32
    return found - unneeded - first_norm


def _sparse_activations(shape: ModelShape, batch: MicroBatchShape, width: int, dense: int) -> int:
    """Returns the bytes that autograd keeps of one layer with experts; `dense`: those of one with an MLP."""
    return dense + batch.tokens * width * (_expert_elements(shape) - 4 * shape.intermediate)


def _recomputed(
    shape: ModelShape, batch: MicroBatchShape, width: int, kind: Literal["cpu", "cuda"], lora: LoraShape | None
) -> int:
    """Returns the bytes that autograd keeps of the one layer that is computed again."""
    dense = layer_activations(shape, batch, width, kind, lora)
    return _sparse_activations(shape, batch, width, dense) if shape.sparse_layers else dense


def layer_gradients(shape: ModelShape, batch: MicroBatchShape, width: int, kind: Literal["cpu", "cuda"] = "cpu") -> int:
    """Returns the bytes of the gradients that one layer's backward pass holds at a time, beside what autograd kept.

    In the MLP: those of two factors and of the hidden states, twice. In flash attention (on GPUs in bfloat16): the
    queries' gradient, also in float32, and that of keys and values, which its kernel writes for each query head before
    those of a key head are added up (`dk_expanded`, `dv_expanded` and `dq_accum` of FlashAttention 2's
    `mha_varlen_bwd`). Samples have their prompt's keys gathered, each for itself. This is reckoned, not measured.
    """
    inner = max(shape.intermediate, shape.experts_per_token * shape.expert_intermediate)
    mlp = 2 * batch.tokens * width * (inner + shape.hidden)
    if kind == "cpu" or width == FLOAT32 or not flash_width(shape.head_dim) or shape.capped or shape.sinks:
        return mlp
    keys = batch.rows * (batch.prompt_tokens + batch.sample_tokens)
    expanded = shape.queries if shape.heads > shape.kv_heads else 0
    attention = 2 * width * keys * (shape.keys + expanded) + batch.drawn * shape.queries * (width + FLOAT32)
    return max(mlp, attention)


def layer_activations(
    shape: ModelShape,
    batch: MicroBatchShape,
    width: int,
    kind: Literal["cpu", "cuda"] = "cpu",
    lora: LoraShape | None = None,
) -> int:
    """Returns the bytes that autograd keeps of one layer with an MLP.

    Of each token: a norm's float32 input and 1 / RMS, its result before and after the weight; the queries' and keys'
    norms without the latter; the inputs of the output projection and of the down projection, and the three factors of
    the MLP. Of the attention: queries, keys, values, results, log-sum-exp (float32) and, without flash attention, the
    mask. On a GPU no kernel computes heads whose width is not a multiple of `FLASH_STEP`.

    With LoRA no norm keeps its result before the weight, and no layer without adapters its input.
    """
    norms = shape.norms * (shape.hidden * (FLOAT32 + 2 * width) + FLOAT32)
    if shape.qk_norm:
        norms += (shape.heads + shape.kv_heads) * (shape.head_dim * (FLOAT32 + width) + FLOAT32)
    packed = batch.tokens * (norms + (shape.queries + 4 * shape.intermediate - _unneeded(shape, lora)) * width)
    both = batch.prompt_tokens + batch.sample_tokens
    queries = batch.prompts * batch.prompt_tokens + batch.rows * batch.sample_tokens
    keys = batch.prompts * batch.prompt_tokens + batch.rows * both
    rectangles = 2 * width * (queries * shape.queries + keys * shape.keys) + queries * shape.heads * FLOAT32
    unaligned = kind == "cuda" and shape.head_dim % FLASH_STEP != 0
    if shape.capped or shape.sinks or unaligned:
        return packed + rectangles + _written_out(shape, batch, width)
    masked = kind == "cpu" or not flash_width(shape.head_dim)
    mask = batch.rows * batch.sample_tokens * both * width if masked else 0
    return packed + rectangles + mask


def _unneeded(shape: ModelShape, lora: LoraShape | None) -> int:
    """Returns the elements of a token that a layer keeps only where all of its weights are trained."""
    if lora is None:
        return 0
    norms = shape.norms * shape.hidden + (shape.queries + shape.keys if shape.qk_norm else 0)
    inputs = {
        frozenset({"q_proj", "k_proj", "v_proj"}): shape.hidden,
        frozenset({"o_proj"}): shape.queries,
        frozenset({"gate_proj", "up_proj"}): shape.hidden,
        frozenset({"down_proj"}): shape.intermediate,
    }
    return norms + sum(size for names, size in inputs.items() if not names & lora.names)


def _written_out(shape: ModelShape, batch: MicroBatchShape, width: int) -> int:
    """Returns the bytes of the scores of one layer that no kernel computes (`learner.model.attention.scores`).

    The softmax is kept in float32 and in the compute type, with a cap the hyperbolic tangent as well; keys and values
    are kept for each query head. This is reckoned, not measured.
    """
    both = batch.prompt_tokens + batch.sample_tokens
    pairs = batch.prompts * batch.prompt_tokens**2 + batch.rows * batch.sample_tokens * both
    score = FLOAT32 + (width if width < FLOAT32 else 0) + (width if shape.capped else 0)
    keys = batch.prompts * batch.prompt_tokens + batch.rows * both
    return pairs * shape.heads * score + 2 * width * keys * (shape.queries - shape.keys)


def logits(shape: ModelShape, batch: MicroBatchShape, width: int, kind: Literal["cpu", "cuda"] = "cpu") -> int:
    """Returns the bytes of the logits at their peak: in float32, of at most `LOGITS_AT_ONCE` values or one token."""
    at_once = min(batch.drawn, max(1, LOGITS_AT_ONCE[kind] // shape.vocabulary)) * shape.vocabulary
    return at_once * (LOGIT_COPIES * FLOAT32 + (width if width < FLOAT32 else 0))


def _expert_elements(shape: ModelShape) -> int:
    """Elements that a token's experts keep: their inputs and weighted results, and four factors as an MLP has.

    The number of the router's probabilities is that of all experts. This is reckoned, not measured.
    """
    one = 4 * shape.expert_intermediate + 2 * shape.hidden
    return shape.experts_per_token * one + 2 * shape.experts
