"""Puts the parts of one rollout worker together and runs its `RolloutLoop`."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack

import torch

from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.launch import collection
from echo_queue.launch.liveness import LivenessThread, StepClock
from echo_queue.queue import Caller, Payloads, WorkerQueue
from echo_queue.records import Version
from echo_queue.records.validation import GroupLimits
from echo_queue.submission.shards import ShardReader
from workers import base_model, engines
from workers.completers import Completers
from workers.environments.scorer import Scorer
from workers.held_leases import HeldLeases
from workers.lease_keeper import LeaseKeeper, Place, Scoring
from workers.leaser import TaskLeaser
from workers.prompt_encoder import PromptEncoder
from workers.rollout_loop import RolloutLoop
from workers.shutdown import Shutdown, ShutdownThread
from workers.weights import WeightSync


def work(
    config: Config,
    name: str,
    scorers: Sequence[Scorer],
    shutdown: Shutdown,
    make_engine: engines.Maker = engines.create,
) -> None:
    """Runs a rollout worker until the run is finished or `shutdown` is set. Raises `EchoQueueError`.

    `scorers`: those of `environments_of(config)`, in the same order.
    """
    steps = StepClock(config.queue.stall_deadline_s)
    with ExitStack() as ends:
        ends.enter_context(LivenessThread("worker", steps.trouble))
        torch.set_num_threads(config.worker_threads)
        store = connect_store(config, "worker")
        # An outage of a service is waited out as long as another role's silence.
        store.deadline_s = deadline_s = config.queue.stall_deadline_s
        caller = Caller.connect(config, "worker", deadline_s)
        folder = base_model.find(config, store, shutdown)
        if shutdown.is_set():
            return
        with collection.paused():
            prompts = PromptEncoder.open(folder, config.model.max_prompt_tokens)
        limits = GroupLimits.of(config, prompts.vocabulary)
        queue = WorkerQueue(caller, Payloads.of(config, store, limits=limits))
        with collection.paused():
            engine = make_engine(config, folder, Version(0, 0), prompts.stop_tokens)
        ends.callback(engine.close)
        weights = WeightSync.open(config, caller, queue, store, worker=name, engine=engine, shutdown=shutdown)
        if weights is None:
            return
        ends.callback(weights.close)
        held, shards = HeldLeases(), ShardReader(store)
        leaser = TaskLeaser(
            config, name, queue, prompts=prompts, shards=shards, held=held, serving=lambda: engine.version
        )
        completers = Completers(config, name, queue, scorers=scorers, prompts=prompts, held=held)
        lease_keeper = LeaseKeeper(
            queue,
            name,
            engine,
            held,
            every_s=config.telemetry.heartbeat_s,
            accepted=lambda: completers.figures.accepted,
            generation_s=lambda: completers.figures.generation_s,
            scoring=lambda: Scoring(completers.figures.scoring_s, completers.waiting, completers.spent),
            fetched=weights.fetched,
            place=Place(config.rollout.pool, config.rollout.machine or socket.gethostname()),
            obey=shutdown.obey,
        )
        lease_keeper.start()
        ends.callback(lease_keeper.close)
        shutdown_thread = ShutdownThread(
            queue, name, shutdown, config.rollout.grace_s, held=held, retire=weights.retire
        )
        shutdown_thread.start()
        ends.callback(shutdown_thread.left)
        loop = RolloutLoop(
            config,
            engine=engine,
            held=held,
            leaser=leaser,
            completers=completers,
            lease_keeper=lease_keeper,
            weights=weights,
            shutdown=shutdown,
            steps=steps,
        )
        loop.run()
