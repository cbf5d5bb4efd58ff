"""The one seed of a test session, from which everything that a test draws anew is drawn.

- Drawn once, by whichever process of the session asks first; its children, pytest-xdist's workers too, inherit it.
- Printed in the header of every session; `ECHO_QUEUE_TEST_SEED` brings it back.
"""

import os
import random

VARIABLE = "ECHO_QUEUE_TEST_SEED"


def session_seed() -> int:
    """A number below 2**31."""
    return int(os.environ.setdefault(VARIABLE, str(random.SystemRandom().randrange(1 << 31))))
