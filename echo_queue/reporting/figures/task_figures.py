"""The figures of what the run is made of: the components of its mixture, and its evaluations."""

from echo_queue.reporting.figures.figure import Figure, Reading, Subject, Values
from echo_queue.reporting.figures.queue_figures import STATUS


def _of_components(reading: Reading, name: str) -> Values:
    found = {name_of: each for update in reading.updates for name_of, each in update.components.items()}
    return {(component,): getattr(each, name) for component, each in found.items()}


def _round(reading: Reading) -> Values:
    found = reading.status.evaluation
    states = {"waiting": 0, "running": 0, "scored": 0}
    if found:
        states = {"waiting": found.waiting, "running": found.running, "scored": found.scored}
    return {(state,): count for state, count in states.items()}


MIXTURE = Subject(
    "The mixture",
    (
        Figure(
            "echo_queue_component_weight",
            "gauge",
            "The weight of a component, beside those of the others.",
            "The run rules (`mixture.weight`)",
            "as configured",
            "Nothing.",
            lambda reading: {(each.name,): each.weight for each in reading.status.components},
            ("component",),
        ),
        Figure(
            "echo_queue_component_admitted_total",
            "counter",
            "Prompts of the component that were admitted, those that are trained anew included.",
            STATUS,
            "in proportion to the weights, while no component is empty",
            "A component that falls behind has no prompts left: see the next figure.",
            lambda reading: {(each.name,): each.admitted for each in reading.status.components},
            ("component",),
        ),
        Figure(
            "echo_queue_component_prompts",
            "gauge",
            "Prompts of the component in the backlog, and those that are declared and have not arrived (`missing`).",
            STATUS,
            "`missing` is 0 soon after the start.",
            "Submit more prompts of the component, or see why its chunks fail.",
            lambda reading: {
                (each.name, place): count
                for each in reading.status.components
                for place, count in (("backlog", each.backlog), ("missing", each.missing))
            },
            ("component", "place"),
        ),
        Figure(
            "echo_queue_component_reward",
            "gauge",
            "Mean reward of the component's samples in the newest update that trained some, of the last 20.",
            "The records of updates",
            "It rises.",
            "Read samples with `echo-queue show`; see [mixtures](mixtures.md#what-you-see).",
            lambda reading: _of_components(reading, "reward_mean"),
            ("component",),
        ),
        Figure(
            "echo_queue_component_truncated_ratio",
            "gauge",
            "Share of these samples that were cut off at their largest length.",
            "The records of updates",
            "small",
            "Raise the component's limit of new tokens.",
            lambda reading: _of_components(reading, "truncated_fraction"),
            ("component",),
        ),
    ),
)

EVALUATION = Subject(
    "Evaluation",
    (
        Figure(
            "echo_queue_evaluation_score",
            "gauge",
            "Mean reward of the held-out prompts, of the newest version of the surviving history that was asked.",
            "The results of rounds",
            "It rises, within its interval.",
            "The model may learn what the reward pays and not what you want: see [evaluation](evaluation.md).",
            lambda reading: {(each.evaluation,): each.mean for each in reading.evaluations if each.mean is not None},
            ("evaluation",),
        ),
        Figure(
            "echo_queue_evaluation_interval_score",
            "gauge",
            "The lower and the upper end of the interval that holds the true mean in 95 of 100 evaluations.",
            "The results of rounds",
            "narrow beside the difference that matters",
            "Ask more prompts.",
            lambda reading: {
                (each.evaluation, end): value
                for each in reading.evaluations
                for end, value in (("low", each.low), ("high", each.high))
                if value is not None
            },
            ("evaluation", "end"),
        ),
        Figure(
            "echo_queue_evaluation_version",
            "gauge",
            "The number of updates in the version that has this score.",
            "The results of rounds",
            "as far behind the learner's version as `evaluation.every_updates` says",
            "Rounds are given up, or last too long: see `echo-queue status`.",
            lambda reading: {(each.evaluation,): each.version.number for each in reading.evaluations},
            ("evaluation",),
        ),
        Figure(
            "echo_queue_evaluation_round_prompts",
            "gauge",
            "Prompts of the round under way by their state; 0 between rounds.",
            STATUS,
            "`scored` rises until the round ends.",
            "No worker answers: see whether workers live.",
            _round,
            ("state",),
        ),
    ),
)
