"""The figures before the queue was made to scale, by a load test of the same kind on two shared cores (Valkey 9.1).

Its load was of other processes: bare sockets for the waiting workers' watchers, without their waits for work.
"""

from typing import Any

SWEEP: tuple[dict[str, Any], ...] = (
    {"workers": 0, "rate": 100, "got": 100, "server_share": 0.06, "complete_p50_ms": 1.3, "complete_p99_ms": 3.3},
    {"workers": 128, "rate": 100, "got": 100, "server_share": 0.37, "complete_p50_ms": 3.8, "complete_p99_ms": 6.1},
    {"workers": 512, "rate": 50, "got": 50, "server_share": 0.68, "complete_p50_ms": 12.6, "complete_p99_ms": 27.8},
    {"workers": 512, "rate": 100, "got": 99, "server_share": 0.88, "complete_p50_ms": 9.5, "complete_p99_ms": 23.9},
    {"workers": 512, "rate": 400, "got": 150, "server_share": 0.74, "complete_p50_ms": 2.3, "complete_p99_ms": 30.5},
    {"workers": 2000, "rate": 50, "got": 46, "server_share": 0.86, "complete_p50_ms": 6.3, "complete_p99_ms": 70.2},
    {"workers": 2000, "rate": 200, "got": 66, "server_share": 0.85, "complete_p50_ms": 4.7, "complete_p99_ms": 79.7},
)
LONGEST_MS = {
    "lease 8": 0.38,
    "complete 1": 0.16,
    "renew 8": 0.16,
    "heartbeat": 0.07,
    "drain 4": 0.25,
    "reclaim, idle": 51.0,
    "status": 34.0,
    "audit": 4.5,
    "join": 4.4,
    "advance that cancels all": 6300.0,
    "pending": 281.0,
}
"""The time of one call, at 100,000 tasks in flight and 2,000 workers."""
STRICT_S = {"256": 0.76, "1024": 7.95}
"""The server's time for one update at S = 0, by B."""
MEMORY = {"waiting task": 148, "leased task": 425, "dead task": 317, "heartbeat": 360, "trained prompt": 1}
BEFORE = {"sweep": SWEEP, "longest_ms": LONGEST_MS, "strict_s": STRICT_S, "memory": MEMORY}
