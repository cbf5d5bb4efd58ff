"""How many workers, of which kind, a learner needs, and what an update costs: from a fleet file, before money is spent.

`estimate/` says what one learner and one worker need, `simulation/` what a plan gives on a simulated clock.

- All but the simulation is pure: functions of a fleet file and a day. Nothing is started, asked for or downloaded.
- Numbers are measured, assumed or dated prices, each a type of its own, and a plan names all that it rests on.
- A set of machines is found exactly; its figures are those of closed bounds, not of a simulation.
"""
