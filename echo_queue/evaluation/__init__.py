"""What an evaluation says: figures with their intervals, and the form in which its results are kept.

- `statistics` makes figures of rewards: means with their intervals, pass@k, the comparison of two models.
- `results` has the answers of a round, and the line that people see of them.
- `answers_file` and `comparison` are those of the command `eval`: its file, and what it prints.
- `stored` keeps the answers in the object store.
"""
