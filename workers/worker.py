"""Puts the parts of one rollout worker together; `rollout.py` is what it then does."""

import threading
from functools import partial

import torch

from echo_queue.config import Config
from echo_queue.connections.connect import connect_store
from echo_queue.queue import Queue
from echo_queue.records import Version
from echo_queue.records.validation import GroupLimits
from echo_queue.submission.shards import ShardReader
from workers import base_model, engines
from workers.completer import GroupCompleter
from workers.environments.scorer import Scorer
from workers.held_leases import HeldLeases
from workers.lease_keeper import LeaseKeeper
from workers.leaser import TaskLeaser
from workers.prompt_encoder import PromptEncoder
from workers.rollout_loop import Rollout
from workers.shutdown import Shutdown, ShutdownThread
from workers.weights.fetch import VersionFetcher
from workers.weights.key_pinning import pin
from workers.weights.peers.exchange import PeerExchange
from workers.weights.peers.part_cache import PartCache
from workers.weights.prefetch import Prefetcher
from workers.weights.staging import Stage
from workers.weights.swap import WeightSwap
from workers.weights.watcher import WeightWatcher


def work(
    config: Config,
    name: str,
    scorer: Scorer,
    leaving: Shutdown,
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
    prompts = PromptEncoder.open(folder, config.model.max_prompt_tokens)
    queue.partial_payloads.limits = GroupLimits.of(config, prompts.vocabulary)
    engine = make_engine(config, folder, Version(0, 0), prompts.stop_tokens)
    settings, deadline_s = config.weights, config.queue.stall_deadline_s
    part_cache = PartCache((settings.cache_dir or config.run.dir / "part cache") / name, settings.cache_max_bytes)
    exchange = PeerExchange(queue, store, part_cache, name, settings, secret=pinned.trust.token_secret)
    bring = partial(exchange.bring, deadline_s=deadline_s)
    stage = Stage()
    intake = VersionFetcher(
        store, pinned, stage, bring=bring, part_cache=part_cache, base=engine.weight, make_way=exchange.make_way
    )
    ahead = Prefetcher(queue, pinned.verifier, stage, exchange, deadline_s)
    follower = WeightWatcher(queue, intake, engine.version, ahead.follow)
    held, wake = HeldLeases(), threading.Event()
    finishing = GroupCompleter(config, name, queue, scorer=scorer, prompts=prompts, held=held)
    lease_keeper = LeaseKeeper(
        *(queue, name, engine, held),
        every_s=config.telemetry.heartbeat_s,
        accepted=lambda: finishing.accepted,
        fetched=exchange.fetched,
    )
    leaver = ShutdownThread(queue, name, leaving, config.rollout.grace_s, held=held, retire=exchange.retire)
    for thread in (lease_keeper, leaver, follower):
        thread.start()
    rollout = Rollout(
        config=config,
        name=name,
        queue=queue,
        engine=engine,
        scorer=scorer,
        held=held,
        leasing=TaskLeaser(
            *(config, name, queue),
            prompts=prompts,
            shards=ShardReader(store),
            held=held,
            serving=lambda: engine.version,
            wake=wake,
        ),
        finishing=finishing,
        lease_keeper=lease_keeper,
        leaving=leaving,
        follower=follower,
        gate=WeightSwap(engine),
        wake=wake,
    )
    try:
        rollout.run()
    finally:
        leaver.left()
        lease_keeper.close()
        follower.close()
        exchange.close()
        part_cache.close()
        engine.close()
