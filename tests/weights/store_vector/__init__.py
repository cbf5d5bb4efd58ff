"""A run's weights as they lie in a store: an anchor and differences, encrypted; `python -m tests.weights.store_vector`.

Only to be written again for another format.
"""
