"""What each update says about the health of learning, and the guard that warns before it breaks.

`ratios.py` computes figures of all tokens' ratios, `guard.py` has the rule. Both are pure functions of one update's
values, which are the same on every rank.
"""
