"""A laboratory for broadcasts on one machine: network namespaces joined by links of a chosen rate.

`network` builds and removes it, `goodput` calibrates it, `origin` is a real S3 server in it, `processes` starts and
steers the `node`s, and `scenarios` are the experiments that `benchmarks/broadcast.py` prints.
"""
