"""The learner's benchmark, `python -m benchmarks.learner`."""
