"""What this worker fetches weights with, and passes them on with: its spool, its courier, its peer server."""

from collections import Counter
from collections.abc import Mapping

from echo_queue.config import Config
from echo_queue.errors import Problem
from echo_queue.queue import Queue
from echo_queue.store import ObjectStore
from echo_queue.weights.manifest import Route
from echo_queue.weights.reading import Damaged
from workers.weights.spool import Spool
from workers.weights.trusting import Pinned


class Supply:
    def __init__(self, config: Config, name: str, queue: Queue, store: ObjectStore, pinned: Pinned) -> None:
        settings = config.weights
        folder = settings.spool_dir or config.run.dir / "spool"
        self.spool = Spool(folder / name, settings.spool_max_bytes)
        self.bytes: Counter[str] = Counter()
        self._store = store

    def bring(self, route: Route) -> None:
        for part in route.parts:
            file = self.spool.open(part)
            while not file.whole:
                data = self._store.get_range(part.key, part.start(file.next), part.length(file.next))
                if not file.write(file.next, data):
                    raise Damaged(Problem(part.key, "its bytes are not those that were published", "publish again"))
                self.bytes["store"] += len(data)

    @property
    def fetched(self) -> Mapping[str, int]:
        return self.bytes

    def close(self) -> None:
        self.spool.close()
