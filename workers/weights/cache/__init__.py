"""What transports share that land parts in files of this worker: the part cache, and the downloads that fill it."""
