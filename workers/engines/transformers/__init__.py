"""The engine that generates with transformers, in the worker's process."""
