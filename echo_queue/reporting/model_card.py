"""The model card of an exported folder, `README.md`: what the run knows of the model, and no prompt of it.

Its head is the metadata that the Hugging Face hub reads. A path of this machine is never in it, only a file's name.
Source: huggingface/hub-docs, docs/hub/model-cards.md.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from echo_queue import __version__
from echo_queue.config import Config
from echo_queue.evaluation.results import EvaluationResult, curves
from echo_queue.queue.counts import counted
from echo_queue.records import Version
from echo_queue.reporting import metrics
from echo_queue.reporting.metrics import UpdateMetrics

FILE = "README.md"
INIT = "init"
TAGS = ("echo-queue", "reinforcement-learning")


@dataclass(frozen=True)
class CardFacts:
    """The facts hold what is known of a model beside its configuration.

    `model`: a version, `final` or `base`. `version`: that version; None if it is not known which one it is. `command`:
    the one that exported it. `license`: the base model's keys of the metadata about it. `chosen_by`: the evaluation
    whose best version this is, where it was asked for as that. `sources`: those of the prompts, as they may be told,
    by the names of their sets. `updates`, `evaluations`: of the run, those after this version as well.
    """

    model: str
    version: Version | None
    command: str
    adapter: bool = False
    license: Mapping[str, str] | None = None
    chosen_by: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    updates: Sequence[UpdateMetrics] = ()
    evaluations: Sequence[EvaluationResult] = ()

    @property
    def trained(self) -> int | None:
        """The number of updates in the weights; None if it is not known."""
        if self.model == "base":
            return 0
        if self.version is not None:
            return self.version.number
        return self.updates[-1].version if self.updates else None

    @property
    def past(self) -> Sequence[UpdateMetrics]:
        """The updates that the weights hold, as far as they are known."""
        trained, lineage = self.trained, self.version.lineage if self.version else None
        return [
            one
            for one in self.updates
            if trained is not None and one.version <= trained and (lineage is None or one.lineage <= lineage)
        ]

    @property
    def evaluated(self) -> Iterator[EvaluationResult]:
        """Yields, of each evaluation, the first result and the newest one up to this version."""
        known = [one for one in self.evaluations if one.mean is not None and not one.given_up]
        ours = [one for one in known if self.trained is None or one.version.number <= self.trained]
        if self.version is not None:
            ours = [one for one in ours if one.version.lineage <= self.version.lineage]
        for _, curve in sorted(curves(ours).items()):
            yield from (*curve[:1], *curve[1:][-1:])


def card_of(config: Config, facts: CardFacts) -> str:
    """Returns the text of the card."""
    parts = [_metadata(config, facts), *_text(config, facts)]
    return "\n".join(parts) + "\n"


def base_name(config: Config) -> str:
    """Returns the base model's name on the hub; empty if it is made by the run, or a folder."""
    base = config.model.base
    return "" if base == INIT or Path(base).is_dir() else base


def _metadata(config: Config, facts: CardFacts) -> str:
    from huggingface_hub import ModelCardData

    further: dict[str, Any] = {**(facts.license or {})}
    if base := base_name(config):
        further |= {"base_model": base, "base_model_relation": "adapter" if facts.adapter else "finetune"}
    data = ModelCardData(
        library_name="peft" if facts.adapter else "transformers",
        pipeline_tag="text-generation",
        tags=[*TAGS, *(["lora"] if config.model.lora.rank else [])],
        **further,
    )
    return f"---\n{data.to_yaml()}\n---\n"


def _text(config: Config, facts: CardFacts) -> Iterator[str]:
    yield f"# {config.run.name} {facts.model}\n"
    yield f"{_origin(config, facts)} It was exported by echo-queue {__version__}:\n"
    yield f"    {_line(facts.command)}\n"
    yield from _training(config, facts)
    yield from _evaluations(facts)
    yield from _settings(config)
    yield from _use(config, facts)


def _origin(config: Config, facts: CardFacts) -> str:
    """Says which model it is, in one sentence."""
    base = _base(config)
    if facts.model == "base":
        return f"This is {base}, as the run `{config.run.name}` began with it: nothing was trained."
    what = "These are LoRA adapters for" if facts.adapter else "This model is a fine-tuned version of"
    number = "" if facts.trained is None else f", after {counted(facts.trained, 'update')}"
    which = "the final model" if facts.model == "final" else f"version {facts.model}"
    return f"{what} {base}: {which} of the run `{config.run.name}`{number} of reinforcement learning."


def _base(config: Config) -> str:
    if config.model.base == INIT:
        return "a model that the run made with random weights"
    if name := base_name(config):
        return f"[{name}](https://huggingface.co/{name}) at revision `{config.model.revision}`"
    return f"the local model `{_code(Path(config.model.base).name)}`"


def _training(config: Config, facts: CardFacts) -> Iterator[str]:
    if facts.trained == 0:
        return
    yield "## Training\n"
    if not (past := facts.past):
        yield "Nothing was known of its updates where it was exported.\n"
        return
    yield "| prompts | source | groups |\n| --- | --- | --- |"
    for set_name, groups in metrics.sets_of(past).items():
        yield f"| `{_code(set_name)}` | `{_code(facts.sources.get(set_name, '?'))}` | {groups:,} |"
    yield ""
    summary = metrics.summarise(past)
    over = counted(summary.reward_updates, "update")
    yield (
        f"The mean reward of the samples was {summary.reward_first:.3f} over the first {over} and "
        f"{summary.reward_last:.3f} over the last {over} up to this version: {counted(summary.updates, 'update')}, "
        f"{counted(summary.groups, 'group')}, {counted(summary.samples, 'sample')} and "
        f"{counted(summary.tokens, 'token')}.\n"
    )
    for name, one in summary.components.items():
        yield f"- `{_code(name)}`: reward {one.figure}"
    if summary.components:
        yield ""


def _evaluations(facts: CardFacts) -> Iterator[str]:
    rows = list(facts.evaluated)
    if not rows:
        return
    yield "## Evaluation\n"
    yield "| held-out set | version | mean reward, 95% interval | prompts | answers to each | pass@k |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for one in rows:
        pass_at = ", ".join(f"pass@{k} {share:.2f}" for k, share in (one.pass_at or {}).items())
        figures = f"{one.figure} | {one.prompts - one.failed:,} | {one.samples:,} | {pass_at}"
        yield f"| `{_code(one.evaluation)}` | {one.version} | {figures} |"
    yield ""
    if facts.chosen_by:
        yield f"The version was chosen by its mean on `{_code(facts.chosen_by)}`, which is too high for that reason.\n"


def _settings(config: Config) -> Iterator[str]:
    model, learner, rollout = config.model, config.learner, config.rollout
    correction = {} if learner.loss else {"learner.correction.preset": learner.correction.preset}
    shown: Mapping[str, object] = {
        "model.dtype": model.dtype,
        "model.lora.rank": model.lora.rank,
        "model.max_prompt_tokens": model.max_prompt_tokens,
        "model.max_new_tokens": model.max_new_tokens,
        "rollout.group_size": rollout.group_size,
        "rollout.temperature": rollout.temperature,
        "learner.batch_groups": learner.batch_groups,
        "learner.mini_batches": learner.mini_batches,
        "learner.lr": learner.lr,
        "learner.loss": learner.loss,
        **correction,
        "learner.advantage": learner.advantage,
        "learner.normalise": learner.normalise,
        "learner.kl": learner.kl,
        "staleness.s": config.staleness.s,
        "staleness.kappa": config.staleness.kappa,
        "environment.kind": config.environment.kind if config.uses_environment else "",
        "environment.function": config.environment.function if config.uses_environment else "",
        "run.seed": config.run.seed,
    }
    yield "## Settings\n"
    yield "| key | value |\n| --- | --- |"
    yield from (f"| `{key}` | `{_code(str(value))}` |" for key, value in shown.items() if value != "")
    yield ""


def _use(config: Config, facts: CardFacts) -> Iterator[str]:
    yield "## Use\n"
    yield "`FOLDER` is this folder, or the name of its repository.\n"
    yield "```python"
    if facts.adapter:
        base = base_name(config) or "BASE_MODEL"
        yield "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer\n"
        yield f'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("{base}"), "FOLDER")'
        yield f'tokenizer = AutoTokenizer.from_pretrained("{base}")'
    else:
        yield "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
        yield 'model = AutoModelForCausalLM.from_pretrained("FOLDER")'
        yield 'tokenizer = AutoTokenizer.from_pretrained("FOLDER")'
    yield "```"


def _line(text: str) -> str:
    return " ".join(text.split())


def _code(text: str) -> str:
    """Returns a text that stands between backticks in a table."""
    return _line(text).replace("`", "'").replace("|", "\\|")
