"""What `benchmarks.metrics` makes of a run with few workers; its verdict is judged on made-up figures."""

from dataclasses import replace

from benchmarks.metrics import COMPONENTS, MOST_MS, POOLS, measure, targets
from echo_queue.launch.servers.redis_server import RedisServer


def test_a_scrape_has_every_pool_and_the_verdict_is_that_of_its_median(redis_server: RedisServer) -> None:
    found = measure(redis_server, workers=POOLS, rounds=1)
    assert found.samples > 10 * POOLS + 5 * COMPONENTS and found.bytes > found.samples
    (kept,) = targets(replace(found, scrape_ms=MOST_MS)).values()
    (missed,) = targets(replace(found, scrape_ms=MOST_MS + 0.1)).values()
    assert kept and not missed
