"""The base of transports that write parts to this worker's files: the part cache, and the downloads that fill it."""
