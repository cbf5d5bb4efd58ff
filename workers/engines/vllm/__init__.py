"""vLLM in this process, behind the engines' interface.

- vLLM schedules, keeps the key-value cache and runs the model; the tokens are drawn by `workers.engines.draw`, as in
  every engine, so a sample that moves here goes on with the random numbers it began with.
- Weights are copied into the live parameters, between two steps. The parameters stay as the checkpoint has them, and
  each of its tensors is a view of them (`layout.py`).
- The prefix cache is salted anew at every load: samples under way keep what they have, later ones find nothing older.
- vLLM reads long prompts in pieces, and samples beyond `rollout.concurrent_groups` × `rollout.group_size`, or beyond
  the memory of the key-value cache, wait: a step gives a token to each sample that has room. One that loses its room is
  read anew, with the weights of then.
- One engine at a time in a process: they share what `close` takes down.
"""
