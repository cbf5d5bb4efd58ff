"""The names of a run's keys, `eq:{run}:…`, which are stated nowhere else in Python.

- The braces are Redis Cluster's hash tag: every key of a run lies in one slot, hence on one node, so a
  function may derive all of them from the prefix it is given as KEYS[1]. Only moving that very slot to another
  node while the run goes on could split them; stop the run before resharding its slot.
- Keys that not even a monitor may read are under `eqs:{run}:`, in the same slot.
- `library/state.lua` documents type and fields of each key.
- Invitations are no part of the queue: admin keeps them under `eqi:{run}:`, where no role of the run may look.
"""


class Keys:
    """The key names of one run. Every function takes `prefix` as KEYS[1]."""

    def __init__(self, run: str) -> None:
        self.prefix = f"eq:{{{run}}}:"
        self.state = self.prefix + "state"
        self.rules = self.prefix + "rules"
        self.published = self.prefix + "published"
        self.coming = self.prefix + "coming"
        self.forks = self.prefix + "forks"
        self.stats = self.prefix + "stats"
        self.digests = self.prefix + "digests"
        self.tallies = self.prefix + "tallies"
        self.backlog = self.prefix + "backlog"
        self.mixture = self.prefix + "mixture"
        self.redo = self.prefix + "redo"
        self.tasks = self.prefix + "tasks"
        self.retry = self.prefix + "retry"
        self.replay = self.prefix + "replay"
        self.dead = self.prefix + "dead"
        self.round = self.prefix + "round"
        self.evaluation = self.prefix + "evaluation"
        self.scored = self.prefix + "scored"
        self.keepers = self.prefix + "keepers"
        self.evaluations = self.prefix + "evaluations"
        self.open = self.prefix + "open"
        self.leases = self.prefix + "leases"
        self.in_flight = self.prefix + "in_flight"
        self.awaited = self.prefix + "awaited"
        self.consumers = self.prefix + "consumers"
        self.partials = self.prefix + "partials"
        self.unwanted = self.prefix + "unwanted"
        self.ready = self.prefix + "ready"
        self.in_hand = self.prefix + "in_hand"
        self.failures = self.prefix + "failures"
        self.suspended = self.prefix + "suspended"
        self.settled = self.prefix + "settled"
        self.drained = self.prefix + "drained"
        self.workers = self.prefix + "workers"
        self.fleet = self.prefix + "fleet"
        self.fleet_wanted = self.prefix + "fleet_wanted"
        self.idle = self.prefix + "idle"
        self.weight_events = self.prefix + "weight_events"
        self.events = self.prefix + "events"
        self.arrivals = self.prefix + "arrivals"
        self.updates = self.prefix + "updates"
        self.run_keys = f"eqs:{{{run}}}:run_keys"

    def segments(self, task: str) -> str:
        return f"{self.prefix}segments:{task}"

    def set(self, name: str) -> str:
        return f"{self.prefix}set:{name}"

    def chunks(self, name: str) -> str:
        return f"{self.prefix}chunks:{name}"

    def shards(self, name: str) -> str:
        return f"{self.prefix}shards:{name}"

    def lengths(self, name: str) -> str:
        return f"{self.prefix}lengths:{name}"

    def settled_bits(self, epoch: str) -> str:
        return f"{self.prefix}settled:{epoch}"

    def candidates(self, name: str) -> str:
        return f"{self.prefix}candidates:{name}"

    def successes(self, name: str) -> str:
        return f"{self.prefix}successes:{name}"

    def buckets(self, name: str) -> str:
        return f"{self.prefix}buckets:{name}"

    def worker(self, name: str) -> str:
        return f"{self.prefix}worker:{name}"

    def order(self, worker: str) -> str:
        return f"{self.prefix}order:{worker}"

    def offer(self, worker: str) -> str:
        return f"{self.prefix}offer:{worker}"

    def sent(self, worker: str) -> str:
        return f"{self.prefix}sent:{worker}"

    def token(self, name: str) -> str:
        return f"{self.prefix}token:{name}"

    def peer(self, name: str) -> str:
        return f"{self.prefix}peer:{name}"


class InvitationKeys:
    """The key names of one run's invitations.

    `index`: zset, id → ms of its issue. `inviters`: set of the public keys that sign invitations. A record is a hash,
    which only admin writes: name, issued_ms, expires_ms, revoked_ms. `claim` is a hash, which the machine that claimed
    the invitation writes: claimed_ms, and host. `offered` is a string that expires with the invitation, the signed
    grant. To claim it is to rename it to `claimed`, a name that nobody knows but the machine that made up the nonce in
    it.
    """

    def __init__(self, run: str) -> None:
        self.prefix = f"eqi:{{{run}}}:"
        self.index = self.prefix + "index"
        self.inviters = self.prefix + "inviters"

    def record(self, id: str) -> str:
        return f"{self.prefix}record:{id}"

    def claim(self, id: str) -> str:
        return f"{self.prefix}claim:{id}"

    def offered(self, id: str) -> str:
        return f"{self.prefix}offered:{id}"

    def claimed(self, id: str, nonce: str) -> str:
        return f"{self.prefix}claimed:{id}:{nonce}"
