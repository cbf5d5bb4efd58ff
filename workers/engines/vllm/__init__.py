"""An engine over vLLM in this process.

- vLLM schedules, keeps the key-value cache and runs the model. The tokens are drawn by `workers.engines.draw`, as in
  every engine, so a sample that moves here continues with the random numbers that it began with.
- Weights are copied into the live parameters between two steps. The parameters stay as the checkpoint has them, and
  each of its tensors is a view of them (`layout.py`).
- The prefix cache gets a new salt at every load: running samples keep their cache, later ones find nothing older.
- vLLM reads long prompts in pieces. Samples beyond `rollout.concurrent_groups` × `rollout.group_size`, or beyond the
  memory of the key-value cache, wait: a step gives a token to each sample that has room. A sample that loses its room
  is read again, with the weights of that moment.
- A process can have one engine at a time, since engines share state that `close` takes down.
"""
