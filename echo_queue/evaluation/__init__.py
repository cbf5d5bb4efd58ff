"""What an evaluation says: figures with their intervals, and the form in which its results are kept.

- `statistics` makes figures of rewards: means with their intervals, pass@k, the comparison of two models.
- `results` has the answers of a round, and the line that people see of them.
- `stored` keeps the answers in the object store.
"""
