"""The simulator and the bounds against the live system: how busy a learner is that a small fleet feeds.

Each setting runs live: real rollout workers with paced engines (`benchmarks.fleet`), the real queue, a real store, and
a learner that sleeps for the time of an update and publishes as late as the setting says. Then it is simulated, with
the same prompts' generation times, whole workers, and the speeds of publications, arrivals and engines as measured.
"""
