"""Makes the environment that the configuration names. An environment that is not used is not imported."""

from echo_queue.config import Environment as EnvironmentConfig
from workers.environments.protocol import InteractiveEnvironment, ScoringEnvironment


def create(config: EnvironmentConfig) -> ScoringEnvironment | InteractiveEnvironment:
    """Makes the configured environment, an `InteractiveEnvironment` iff `config.kind` is interactive.

    Raises `ConfigError` if the environment cannot be made on this machine.
    """
    match config.kind:
        case "reasoning-gym":
            from workers.environments.reasoning_gym import ReasoningGym

            return ReasoningGym()
        case "math":
            from workers.environments.math import Math

            return Math()
        case "function":
            from workers.environments.function import Function

            return Function(config.function)
        case "interactive":
            from workers.environments.interactive import make

            return make(config.function, config.options)
        case "verifiers":
            from workers.environments.verifiers import Verifiers

            return Verifiers(config.function, config.options)
        case "poker":
            from workers.environments.poker import Poker

            return Poker()
