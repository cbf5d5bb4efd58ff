"""The controller of a fleet: it rents and dismisses machines so that the learner is busy at the least price.

`decision.decide` is pure: it looks at machines, workers and offers, and returns orders. Around it, a thin loop reads,
notes what it is about to do, and does it. docs/fleet.md describes it for users.
"""
