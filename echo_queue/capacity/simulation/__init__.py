"""A run on a simulated clock: what a learner and pools of machines would do, in seconds instead of days.

The queue's decisions are made in memory; the tests have the real queue make them, with the same result.
"""

from echo_queue.capacity.simulation.figures import Figures
from echo_queue.capacity.simulation.scenario import Scenario
from echo_queue.capacity.simulation.simulate import simulate

__all__ = ["Figures", "Scenario", "simulate"]
