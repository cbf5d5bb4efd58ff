"""A map of where a fleet saves as much as ECHO-2 reports against generation at the learner's own place.

All figures are those of plans by the bounds (`echo_queue.capacity`), with the numbers of a fleet file: dated prices,
and rates of which most are assumed. No number was chosen for its outcome; each assumption is halved and doubled.
"""
