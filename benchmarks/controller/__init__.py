"""A controller against what happens to a live fleet: real workers on machines that the `local` driver starts and ends.

A real queue and store feed a learner that sleeps for the time of an update. Machines are processes with one rollout
worker each, whose engines are paced (`benchmarks.fleet`). Only prices, capacity and the lie are made up.
"""
