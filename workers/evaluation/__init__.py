"""`python -m workers.evaluation`: one model answers held-out sets on this machine, without a learner and its queue.

- `asked` says what is asked of which model: the sets, and their prompts.
- `served` makes the engine that serves the model.
- `local_queue` takes what has ended, in place of the queue, and keeps the answers in a file.
- `answering` is the loop that generates them.
"""
