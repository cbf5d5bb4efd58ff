"""The loop that answers prompts with one engine: they join it while there is room, and leave as scored answers.

- A prompt that fails is asked again until its attempts are used up, and keeps nobody else waiting.
- The loop ends once every prompt is answered or has failed for good, or soon after `shutdown` is set. Answers that are
  not scored by then are dropped.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from echo_queue.config import Config
from echo_queue.errors import EchoQueueError
from echo_queue.records import NOTHING
from workers.assignment import Assignment
from workers.completers import Completers
from workers.engines import Engine
from workers.environments.tracebacks import formatted
from workers.evaluation.asked import Prompt, again
from workers.evaluation.local_queue import LocalQueue
from workers.held_leases import HeldLeases
from workers.item_errors import is_of_item
from workers.leaser import terms_of
from workers.prompt_encoder import PromptEncoder

POLL_S = 0.05
"""The pause between checks while nothing is generated."""
CLOSE_S = 1.0
"""The time within which calls under way may still be answered at the end."""
NAME = "eval"


class AnswerLoop:
    """The loop, for the main thread. `prompts`: those that are left; `report` is called after each turn."""

    def __init__(
        self,
        config: Config,
        *,
        engine: Engine,
        encoder: PromptEncoder,
        completers: Completers,
        queue: LocalQueue,
        held: HeldLeases,
        shutdown: threading.Event,
        report: Callable[[], None],
    ) -> None:
        self._config = config
        self._engine = engine
        self._encoder = encoder
        self._completers = completers
        self._queue = queue
        self._held = held
        self._shutdown = shutdown
        self._report = report
        self._most = config.rollout.concurrent_groups
        self._seats = self._most * config.rollout.group_size
        self._open: dict[str, Prompt] = {}
        """The prompts that were begun, and have neither been answered nor failed for good."""
        self._generating: dict[str, Assignment] = {}
        self._again: deque[Prompt] = deque()

    def run(self, prompts: Iterator[Prompt]) -> None:
        """Answers them all. Raises what an environment that cannot be made, or a file that is full, raises."""
        self._completers.wait_ready()
        self._completers.start()
        try:
            while not self._shutdown.is_set():
                self._completers.check()
                self._take_ended()
                self._begin(prompts)
                self._continue_answered()
                if self._engine.running:
                    self._step()
                elif not self._open and not self._again:
                    break
                else:
                    self._queue.wake.wait(POLL_S)
                    self._queue.wake.clear()
                self._report()
        finally:
            self._completers.close(CLOSE_S)

    def _take_ended(self) -> None:
        """Forgets what was answered or has failed, and notes what is to be asked again."""
        while not self._queue.ended.empty():
            ended = self._queue.ended.get_nowait()
            prompt = self._open.pop(ended.id)
            if self._generating.pop(ended.id, None) is not None:
                self._engine.abort([ended.id])
            if ended.again:
                self._again.append(again(prompt))

    def _begin(self, prompts: Iterator[Prompt]) -> None:
        while self._has_room() and (prompt := self._again.popleft() if self._again else next(prompts, None)):
            self._open[prompt.task.id] = prompt
            try:
                assignment = self._assignment(prompt)
            except Exception as error:
                if not is_of_item(error):
                    raise
                reason = str(error) if isinstance(error, EchoQueueError) else formatted(error)
                self._queue.fail(NAME, prompt.task.id, reason)
                continue
            self._held.add([prompt.task], self._engine.version.number)
            self._generating[assignment.id] = assignment
            self._engine.add(assignment.requests())

    def _has_room(self) -> bool:
        """Returns whether one more prompt may begin. A single one always may, however many samples it has."""
        samples = sum(len(one.samples) for one in self._generating.values())
        return samples < self._seats and not self._completers.behind(self._most)

    def _assignment(self, prompt: Prompt) -> Assignment:
        terms = terms_of(prompt.task, self._config)
        return Assignment(
            prompt.task,
            prompt.row,
            self._encoder.encode(prompt.row),
            self._config.run.seed,
            terms.limit,
            terms.sampling,
            samples=[NOTHING] * terms.samples,
            begun_s=time.monotonic(),
        )

    def _continue_answered(self) -> None:
        """Continues the samples to which the environment has answered."""
        while not self._completers.returned.empty():
            ended = self._completers.returned.get_nowait()
            if self._generating.get(ended.assignment.id) is ended.assignment:
                self._engine.add([ended.assignment.request(ended.number)])

    def _step(self) -> None:
        """Draws at least one token for each sample, and submits those that ended: one by one where the environment may
        answer, else all of a prompt together."""
        for key, sample in self._engine.step().items():
            assignment = self._generating[key.task]
            assignment.samples[key.sample] = sample
            completer = self._completers.of(assignment.task.set)
            if not completer.interactive and assignment.ended:
                del self._generating[key.task]
            if completer.interactive or assignment.ended:
                completer.submit(assignment, key.sample)
