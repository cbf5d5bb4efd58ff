"""Puts the parts of one rollout worker together; `rollout.py` is what it then does."""

import threading
from functools import partial

import torch

from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.queue import Queue
from echo_queue.records import Version
from echo_queue.records.validation import Limits
from echo_queue.submission.shards import ShardReader
from workers import base_model, engines
from workers.completer import Finishing
from workers.environments.scorer import Scorer
from workers.heartbeat import Heart
from workers.held_leases import Held
from workers.leaser import Leasing
from workers.prompt_encoder import Prompts
from workers.rollout_loop import Rollout
from workers.shutdown import Leaver, Leaving
from workers.weights.fetch import Intake
from workers.weights.key_pinning import pin
from workers.weights.peers.exchange import Courier
from workers.weights.peers.part_cache import Spool
from workers.weights.prefetch import Ahead
from workers.weights.staging import Stage
from workers.weights.swap import Gate
from workers.weights.watcher import Follower


def work(
    config: Config,
    name: str,
    scorer: Scorer,
    leaving: Leaving,
    make_engine: engines.Maker = engines.create,
) -> None:
    """Runs until the run is finished or `leaving` is set."""
    torch.set_num_threads(config.worker_threads)
    store = connect_store(config, "worker")
    queue = Queue.connect(config, "worker", store)
    # An outage of a service is waited out as long as another role's silence.
    store.deadline_s = queue.caller.deadline_s = config.queue.stall_deadline_s
    folder = base_model.find(config, store, leaving)
    pinned = pin(config, queue, leaving)
    if pinned is None or leaving.is_set():
        return
    prompts = Prompts.open(folder, config.model.max_prompt_tokens)
    queue.under_way.limits = Limits.of(config, prompts.vocabulary)
    engine = make_engine(config, folder, Version(0, 0), prompts.stop_tokens)
    settings, deadline_s = config.weights, config.queue.stall_deadline_s
    spool = Spool((settings.spool_dir or config.run.dir / "spool") / name, settings.spool_max_bytes)
    courier = Courier(queue, store, spool, name, settings, secret=pinned.trust.token_secret)
    bring = partial(courier.bring, deadline_s=deadline_s)
    stage = Stage()
    intake = Intake(store, pinned, stage, bring=bring, spool=spool, base=engine.weight, make_way=courier.make_way)
    ahead = Ahead(queue, pinned.verifier, stage, courier, deadline_s)
    follower = Follower(queue, intake, engine.version, ahead.follow)
    held, wake = Held(), threading.Event()
    finishing = Finishing(config, name, queue, scorer=scorer, prompts=prompts, held=held)
    heart = Heart(
        *(queue, name, engine, held),
        every_s=config.telemetry.heartbeat_s,
        accepted=lambda: finishing.accepted,
        fetched=courier.fetched,
    )
    leaver = Leaver(queue, name, leaving, config.rollout.grace_s, held=held, retire=courier.retire)
    for thread in (heart, leaver, follower):
        thread.start()
    rollout = Rollout(
        config=config,
        name=name,
        queue=queue,
        engine=engine,
        scorer=scorer,
        held=held,
        leasing=Leasing(
            *(config, name, queue),
            prompts=prompts,
            shards=ShardReader(store),
            held=held,
            serving=lambda: engine.version,
            wake=wake,
        ),
        finishing=finishing,
        heart=heart,
        leaving=leaving,
        follower=follower,
        gate=Gate(engine),
        wake=wake,
    )
    try:
        rollout.run()
    finally:
        leaver.left()
        heart.close()
        follower.close()
        courier.close()
        spool.close()
        engine.close()
