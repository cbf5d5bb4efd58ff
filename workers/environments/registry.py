"""Makes the environment that the configuration names. An environment that is not used is not imported."""

from workers.environments.protocol import EnvironmentSettings, InteractiveEnvironment, ScoringEnvironment


def create(settings: EnvironmentSettings) -> ScoringEnvironment | InteractiveEnvironment:
    """Makes the configured environment, an `InteractiveEnvironment` iff `settings.kind` is interactive.

    Raises `ConfigError` if the environment cannot be made on this machine.
    """
    match settings.kind:
        case "reasoning-gym":
            from workers.environments.reasoning_gym import ReasoningGym

            return ReasoningGym()
        case "math":
            from workers.environments.math import Math

            return Math()
        case "function":
            from workers.environments.function import Functions

            return Functions(settings.function, settings.rewards)
        case "interactive":
            from workers.environments.interactive import make

            return make(settings.function, settings.options)
        case "verifiers":
            from workers.environments.verifiers import Verifiers

            return Verifiers(settings.function, settings.options)
    raise ValueError(f"not a kind of environment: {settings.kind}")
