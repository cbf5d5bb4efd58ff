"""`python -m tests.faults.poison --seed N --duration S` trains a run whose prompts are poisoned at random.

- A real `echo-queue run`, with two workers, and then a second one, whose environment answers the model. Prompts are
  submitted for as long as the duration says; one in four is poison: the model's chat template refuses it, it has a
  token that the model does not, or what scores it raises, hangs, forks, exits, closes its files or leaves processes.
- A third worker sends groups of another model's tokens and nothing else. It alone is suspended, with that reason, and
  its groups cost no prompt its life.
- Every good prompt is trained once. Every poisoned one is dead, with its own reason. No worker is started again, and no
  process is left.
- Two rounds of evaluation or more ask prompts of which half are poison to an environment of their own. Each of these
  fails in each round, for its own reason; the others are answered, and training's prompts lose no attempt.
- A poisoned prompt that its submitter would refuse comes from one without the model's files, which cannot judge.

| module | content |
| --- | --- |
| `poisons` | the poisons, and the reason that each must be dead of |
| `misbehaving` | the reward function and the environment that do as a prompt's column says |
| `model` | a model whose template refuses some prompts, and whose tokenizer has a token too many |
| `storm` | one run from its beginning to its end, and the verdict |
"""
