"""A base and a new version (safetensors), the delta between them and an anchor of the new one, as docs/weights.md says.

`python -m tests.weights.vector` makes them again.
"""
