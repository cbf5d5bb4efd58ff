"""A run on a simulated clock: what a learner and a fleet of machines would do, in seconds instead of days.

The fast tier decides in memory, the exact tier by the queue's own Lua functions; both have the same learner and
machines (`world.py`), and the same result.
"""

from echo_queue.capacity.simulation.figures import Figures
from echo_queue.capacity.simulation.setting import Setting, load
from echo_queue.capacity.simulation.simulate import TierName, simulate

__all__ = ["Figures", "Setting", "TierName", "load", "simulate"]
