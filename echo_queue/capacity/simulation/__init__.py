"""A run on a simulated clock: what a learner and a fleet of machines would do, in seconds instead of days.

The queue's decisions are made in memory; the tests have the real queue make them, with the same result.
"""

from echo_queue.capacity.simulation.figures import Figures
from echo_queue.capacity.simulation.setting import Setting, load
from echo_queue.capacity.simulation.simulate import simulate

__all__ = ["Figures", "Setting", "load", "simulate"]
