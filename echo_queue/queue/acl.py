"""The rights of each role's Redis user, as ACL rules (`ACL SETUSER` words, without name, state and password).

- A role may call only its own functions, and a function runs with its caller's rights. So a function that is called in
  some other manner can do no more than the caller's keys allow.
- A worker can lease, renew and complete tasks. It can neither submit, nor add or bury tasks, nor publish, nor change a
  counter that the identity is checked with. Of other workers' results it can read only partial rollouts, because it may
  have to continue them. The single commands that completing needs are also open to it by hand: it can delete entries of
  tasks, add entries to replay, and change places in `open`. The audit shows such changes (docs/reliability.md), and no
  worker is blamed for a group unless its own user has noted that it sent it.
- A controller reads what a monitor does, and may lead a fleet and order workers to rest or to leave. So its holder can
  stop a run, and neither change its tasks nor see its secrets.
- A worker may also wake a learner that waits, say who waits for tasks, wake one of those in vain, and take the offer of
  a task, for which another worker then wakes some seconds later.
- A worker may also write which peer fetches weights from which. A wrong entry costs other workers time at most, because
  they verify the weights that they fetch.
- Only admin may change the functions. Otherwise a learner would run code that the broker's user had put in their place.
- The rules use only words that Redis 7.0 knows, because an unknown word keeps a server from starting.
"""

from collections.abc import Iterator

from echo_queue.connections.secrets import Role
from echo_queue.queue.keys import InvitationKeys, Keys

SESSION = "+ping +hello +auth +select +echo +time +wait"
INFO = "+info"
"""The command that shows how the server is set, to roles that are trusted with the number of keys of others. It comes
after `-@dangerous`, which has it."""
TRANSACTION = "+multi +exec +discard"
BLIND = "-scan -randomkey -dbsize"
"""Denied commands: they reveal names and numbers of keys that are not the role's."""
SCRIPTS = "+eval +evalsha +script|exists +script|load"
"""Commands for Kombu's own scripts, which work on Kombu's own keys."""

# (access, commands, keys): "~" reads and writes, "%R~" reads, "%W~" writes.
Grant = tuple[str, str, tuple[str, ...]]

WORKER_CALLS = (
    *("lease", "renew", "release", "fail", "progress", "discard", "complete", "heartbeat", "leave", "confirm"),
    *("join", "report", "withdraw"),
)
OWN: tuple[Grant, ...] = (
    ("~", "+get +set", ("token:*",)),
    ("%W~", "+hset +pexpire", ("worker:*",)),
    ("%W~", "+xadd +pexpire", ("sent:*",)),
)
"""The rights on what a worker keeps under its name: the names to which these are limited are all that it can go by."""
WORKER: tuple[Grant, ...] = (
    ("%R~", "+hgetall +hget +hmget", ("state", "rules", "published", "coming", "forks")),
    ("~", "+xreadgroup +xclaim +xpending +xrange +xack +xdel +xlen +xinfo|groups", ("tasks", "retry", "evaluation")),
    ("~", "+xrange +xdel", ("dead",)),
    ("%W~", "+xadd", ("replay", "scored", "arrivals")),
    ("%R~", "+hmget", ("round",)),
    ("~", "+zadd +zrem +zscore +zcard +zremrangebyscore", ("keepers",)),
    ("%R~", "+zcard", ("ready",)),
    ("%R~", "+hget +hexists", ("suspended",)),
    ("%R~", "+xread", ("weight_events",)),
    ("%R~", "+zcard", ("workers",)),
    ("~", "+zadd +zrem +zpopmin", ("idle",)),
    ("~", "+blpop +del +rpush +pexpire", ("offer:*",)),
    ("~", "+hget +hset", ("open",)),
    ("~", "+zadd +zrem +zscore", ("leases", "in_flight", "awaited")),
    ("~", "+hget +hmget +hset +hdel", ("partials",)),
    ("~", "+rpush +lrange +ltrim +lpos +del", ("segments:*",)),
    ("~", "+sadd +scard", ("unwanted",)),
    ("%W~", "+zadd", ("ready", "workers", "consumers")),
    ("%W~", "+zrem", ("workers",)),
    ("%W~", "+hset", ("failures",)),
    ("~", "+bitfield", ("lengths:*",)),
    ("~", "+getrange +setrange", ("successes:*",)),
    ("~", "+hget +hset", ("buckets:*",)),
    ("~", "+hincrby", ("tallies",)),
    ("%W~", "+exists", ("worker:*",)),
    ("%R~", "+get", ("order:*",)),
    ("~", "+hmget +hget +hset +del +pexpire", ("peer:*",)),
    ("~", "+zadd +zscore +zrange +pexpire", ("chain:*",)),
    ("~", "+hget +hset +pexpire", ("feeds:*",)),
    ("~", "+hget +hmget +hset +hdel +pexpire", ("fed:*",)),
    ("~", "+zadd +zrem +zcard +zcount +zrange +pexpire", ("rates:*",)),
    ("~", "+hkeys +hlen +hset +pexpire", ("reports:*",)),
    ("~", "+zadd +zcard +zrem +zremrangebyscore +zscore +pexpire", ("blamed:*",)),
    ("%W~", "+set", ("confirmed",)),
    *OWN,
)
SUBMITTER_CALLS = ("declare", "submit", "reject", "admit", "confirm")
SUBMITTER: tuple[Grant, ...] = (
    ("%R~", "+hgetall +hget +hmget", ("state", "rules", "published", "forks")),
    ("%R~", "+xlen", ("tasks", "retry", "replay")),
    ("%W~", "+xadd", ("tasks", "events")),
    ("~", "+zpopmin", ("idle",)),
    ("%W~", "+rpush +pexpire", ("offer:*",)),
    ("~", "+hincrby", ("state", "stats", "set:*")),
    ("%W~", "+hset", ("open",)),
    ("~", "+hgetall +hget +hmget +hset +hincrby", ("set:*", "chunks:*")),
    ("~", "+zadd +zrange +zrangebyscore", ("shards:*",)),
    ("~", "+hget +hset", ("digests",)),
    ("~", "+zadd +zscore +zrange +zrem", ("backlog",)),
    ("~", "+hgetall +hincrby +hdel", ("settled",)),
    ("~", "+getbit +bitfield +del", ("settled:*",)),
    ("~", "+getrange +setrange", ("lengths:*",)),
    ("%R~", "+getrange", ("successes:*",)),
    ("~", "+zadd +zcard +zrange +zrem", ("candidates:*",)),
    ("%R~", "+hget", ("buckets:*",)),
    ("~", "+hgetall +hset", ("mixture",)),
    ("~", "+llen +lindex +lpop", ("redo",)),
    ("%W~", "+set", ("confirmed",)),
)
CONTROLLER_CALLS = ("lead", "plan", "order", "resign", "pause", "confirm")
CONTROLLER: tuple[Grant, ...] = (
    ("%W~", "+hset +hdel +del", ("fleet", "fleet_wanted")),
    ("%W~", "+set", ("order:*", "confirmed")),
)


def rules(role: Role, run: str, celery_prefix: str, celery_db: int = 0, workers: str = "*") -> str:
    """Returns the rules of `role` for one run. `celery_prefix` is Celery's global key prefix on that server.

    `workers` is a pattern, the names by which a worker may lease tasks and show that it lives.

    `monitor` reads everything of the run except its secrets, and calls the read-only functions; it is meant for
    redis-cli. `celery` is the broker's user: it has no right on the run's queue, and every right under the prefix.
    """
    prefix, run_keys = Keys(run).prefix, Keys(run).run_keys
    match role:
        case "admin":
            words = ["~* &* +@all"]
        case "worker":
            named = tuple(_under(workers, grant) if grant in OWN else grant for grant in WORKER)
            words = [*_narrow(prefix, WORKER_CALLS, named), f"(%R~{run_keys} +hgetall)"]
        case "submitter":
            words = [*_narrow(prefix, SUBMITTER_CALLS, SUBMITTER)]
        case "learner":
            words = [
                f"~{prefix}* ~{run_keys} -@all {SESSION} +@read +@write -@dangerous {INFO} {BLIND}",
                "-function +fcall +fcall_ro",
            ]
        case "monitor":
            words = ["-@all", _reading(prefix), "+client|list +latency|latest +memory|usage +command|docs"]
        case "controller":
            own, *grants = _narrow(prefix, CONTROLLER_CALLS, CONTROLLER)
            words = [own, _reading(prefix), *grants]
        case "celery":
            base = f"{celery_prefix}/{celery_db}."
            # A pattern subscription is allowed only if its very pattern is granted.
            channels = f"&{base}celery.pidbox &{base}celeryev/* &{base}celeryev/worker.*"
            channels += f" &{celery_prefix}celery-task-meta-*"
            commands = "+@connection +@read +@write +@pubsub +@transaction +time -@dangerous"
            words = [f"~{celery_prefix}* {channels} -@all {commands} {BLIND} -function {SCRIPTS}"]
    return " ".join(words)


def _under(names: str, grant: Grant) -> Grant:
    access, commands, keys = grant
    return access, commands, tuple(key.replace("*", names) for key in keys)


def _reading(prefix: str) -> str:
    """Returns the rules for reading all of a run but its secrets."""
    return f"%R~{prefix}* {SESSION} +@read -@dangerous {INFO} {BLIND} +fcall_ro"


def guest_rules(run: str, id: str) -> str:
    """Returns the rules of the user whose password is in an invitation's token.

    It may take that invitation's grant once, by a rename, and read it under the name that it gave it. It sees who may
    invite, its own address as the server sees it, and where the run's workers say that they can be reached.
    """
    keys, queue = InvitationKeys(run), Keys(run)
    offered, claimed = keys.offered(id), keys.claimed(id, "*")
    grants = (
        f"(~{offered} ~{claimed} +rename)",
        f"(%R~{claimed} +get)",
        f"(%W~{keys.claim(id)} +hsetnx)",
        f"(%R~{keys.inviters} +sismember)",
        f"(%R~{queue.workers} +zrange)",
        f"(%R~{queue.peer('*')} +hget)",
    )
    return f"-@all {SESSION} {TRANSACTION} +client|info {' '.join(grants)}"


def _narrow(prefix: str, calls: tuple[str, ...], grants: tuple[Grant, ...]) -> Iterator[str]:
    """Yields the rules for the functions, on the run's prefix, then one selector for each grant."""
    yield f"~{prefix} -@all {SESSION} {TRANSACTION} {' '.join(f'+fcall|eq1_{name}' for name in calls)}"
    for access, commands, keys in grants:
        yield f"({' '.join(f'{access}{prefix}{key}' for key in keys)} {commands})"
