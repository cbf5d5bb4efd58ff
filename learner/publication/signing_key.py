"""The key that signs a run's weights: made once and kept in `run.dir/keys`, or given by the environment.

Everything that workers are told to trust is derived from this key, so that it is the same after a restart. Workers that
joined earlier keep trusting what they were told when they joined.
"""

from echo_queue import config
from echo_queue.connections import secrets
from echo_queue.queue import RunKeys
from echo_queue.weights.signatures import KEY_NAME, Signer


def signer(settings: config.Config) -> Signer:
    """Returns the run's signer.

    Raises `ServiceError` for a file or value that is no key, or a key that others may read.
    """
    given = secrets.signing_key()
    if given is not None:
        return Signer.parse(given, secrets.SIGNING_KEY)
    return Signer.kept_at(settings.run.dir / "keys" / KEY_NAME)


def run_keys(signer: Signer) -> RunKeys:
    """Returns the run keys that the learner publishes for its workers."""
    return RunKeys(signer.public_key, token_secret=signer.secret("tokens"), chunk_key=signer.secret("chunks"))
