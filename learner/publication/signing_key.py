"""The key with which a run's weights are signed: made once, kept in `run.dir/keys`, or given by the environment.

Everything that workers are told to trust follows from it, so it is the same after a restart; workers that joined before
go on trusting what they were told then.
"""

from echo_queue import config
from echo_queue.connections import secrets
from echo_queue.queue import RunKeys
from echo_queue.weights.signatures import KEY_NAME, Signer


def signer(settings: config.Config) -> Signer:
    """Raises `ServiceError` for a key that is none, or that others may read."""
    given = secrets.signing_key()
    if given is not None:
        return Signer.parse(given, secrets.SIGNING_KEY)
    return Signer.kept_at(settings.run.dir / "keys" / KEY_NAME)


def trust(signer: Signer) -> RunKeys:
    """What the learner tells the workers."""
    return RunKeys(signer.public_key, token_secret=signer.secret("tokens"), chunk_key=signer.secret("chunks"))
