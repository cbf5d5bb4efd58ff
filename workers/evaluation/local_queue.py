"""What stands in the queue's place for a completer: it keeps the answers in a file, and counts attempts."""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue

from echo_queue.evaluation.answers_file import AnswerLine, AnswersFile, PromptLine
from echo_queue.queue import Outcome
from echo_queue.records import Group

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EndedTask:
    """A task that was answered or has failed; `again`: it has attempts left."""

    id: str
    again: bool = False


class LocalQueue:
    """The moves of `WorkerQueue` that end a task. Any thread may make them."""

    def __init__(self, file: AnswersFile, max_attempts: int, decode: Callable[[list[int]], str]) -> None:
        self.ended: SimpleQueue[EndedTask] = SimpleQueue()
        self.wake = threading.Event()
        """Set when there is something in `ended`."""
        self._file = file
        self._max_attempts = max_attempts
        self._decode = decode
        self._attempts: Counter[str] = Counter()

    def complete(self, worker: str, groups: Sequence[Group]) -> list[Outcome]:
        """Keeps the answers. Raises `EchoQueueError` if they cannot be written."""
        self._file.add([self._line(group) for group in groups])
        self._end(*(EndedTask(group.task) for group in groups))
        return [Outcome.accepted for _ in groups]

    def fail(self, worker: str, task_id: str, reason: str) -> bool:
        """Gives up one attempt; after the last one, keeps the reason. Raises `EchoQueueError` as `complete`."""
        self._attempts[task_id] += 1
        if self._attempts[task_id] < self._max_attempts:
            self._end(EndedTask(task_id, again=True))
            return True
        name, _, index = task_id.split("/")
        self._file.add([PromptLine(name, int(index), reason=reason)])
        self._end(EndedTask(task_id))
        return True

    def _end(self, *tasks: EndedTask) -> None:
        for task in tasks:
            self.ended.put(task)
        self.wake.set()

    def _line(self, group: Group) -> PromptLine:
        answers = (
            AnswerLine(one.reward, len(one.tokens), one.finish, self._decode(one.tokens.tolist()))
            for one in group.samples
        )
        return PromptLine(group.set, group.index, tuple(answers))
