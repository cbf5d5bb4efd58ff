"""A quarter of an hour on one GPU, `python -m benchmarks.gpu`."""
