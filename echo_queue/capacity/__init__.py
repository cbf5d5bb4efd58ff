"""How many workers, of which kind, a learner needs, and what an update costs: from a fleet file, before money is spent.

- All is pure: functions of a fleet file and a day. Nothing is started, asked for or downloaded.
- Numbers are measured, assumed or dated prices, each a type of its own, and a plan names all that it rests on.
- A set of machines is found exactly; its figures are those of closed bounds, not of a simulation.
"""

from echo_queue.capacity.comparison import plan
from echo_queue.capacity.loading import load_fleet
from echo_queue.capacity.outcome import Outcome, Plan
from echo_queue.capacity.pools_file import pools_file

__all__ = ["Outcome", "Plan", "load_fleet", "plan", "pools_file"]
