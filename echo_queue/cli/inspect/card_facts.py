"""Gathers what a model card says of a run: of Redis where it answers, else of the run's directory on this machine."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from echo_queue.cli.inspect.live.watcher import monitor_caller
from echo_queue.config import Config
from echo_queue.errors import EchoQueueError
from echo_queue.queue import Evaluations, Monitor
from echo_queue.records import Version
from echo_queue.reporting import metrics
from echo_queue.reporting.evaluation_record import EvaluationRecord
from echo_queue.reporting.model_card import FILE, CardFacts, base_name
from echo_queue.reporting.run_record import RunRecord
from echo_queue.submission.sources.source import HUGGING_FACE, S3, is_generated, parts_of

LICENSE = ("license", "license_name", "license_link")
"""The keys of a card's metadata that say under which license a model is."""
ASK_S = 3.0
"""How long the hub may take to answer for the base model's card, without which this one says no license."""


def gather(config: Config, called: str, asked: str, command: str, *, adapter: bool) -> CardFacts:
    """Returns the facts about the model `called` so, for which was `asked`, such as `best`.

    What cannot be read is left out: an export needs none of it.
    """
    queue, told = None, None
    with suppress(EchoQueueError):
        caller = monitor_caller(config)
        queue, told = Monitor(caller), Evaluations(caller)
    record, results = RunRecord(config.run.dir / "metrics.jsonl"), EvaluationRecord(config.run.dir)
    updates, evaluations = record.read(None), results.read()
    with suppress(EchoQueueError):
        updates, evaluations = record.read(queue), results.read(told)
    names = {one.evaluation for one in evaluations}
    return CardFacts(
        model=called,
        version=None if called in ("final", "base") else Version.parse(called),
        command=command,
        adapter=adapter,
        license=license_of(config),
        chosen_by=(config.export.best or ", ".join(sorted(names))) if asked == "best" else "",
        sources=_sources(config, queue, metrics.sets_of(updates)),
        updates=updates,
        evaluations=evaluations,
    )


def _sources(config: Config, queue: Monitor | None, names: Iterable[str]) -> Mapping[str, str]:
    """Returns the sources of these sets, as they were submitted or, if Redis does not answer, as configured."""
    found = {}
    for name in names:
        source = config.source_of(name) if config.section_of(name) or name == config.prompts.set else ""
        with suppress(EchoQueueError):
            if queue and (submitted := queue.submission_status(name)):
                source = submitted.source
        found[name] = told_source(source) or "?"
    return found


def told_source(source: str) -> str:
    """Returns a source as a card tells it: of a path on a disk the last part alone, and no options."""
    name = source.partition(" {")[0]
    with suppress(EchoQueueError):
        name = parts_of(source)[0]
    if name.startswith(f"{HUGGING_FACE}{S3}") or name.startswith(S3) or is_generated(name):
        return name
    kind, path = (HUGGING_FACE, name.removeprefix(HUGGING_FACE)) if name.startswith(HUGGING_FACE) else ("", name)
    local = not kind or path.startswith((".", "/", "~"))
    return f"{kind}{Path(path).name}" if local else name


def license_of(config: Config) -> Mapping[str, str]:
    """Returns what the base model's card says of its license, or its config.json; empty if neither says anything."""
    from huggingface_hub import ModelCard, hf_hub_download

    folder = Path(config.base_model)
    with suppress(Exception):  # a card of somebody else's may be anything, and this one goes without
        if base_name(config):
            read = hf_hub_download(base_name(config), FILE, revision=config.model.revision, etag_timeout=ASK_S)
            folder = Path(read).parent
        data = ModelCard((folder / FILE).read_text(encoding="utf-8")).data
        if found := {key: said for key in LICENSE if isinstance(said := data.get(key), str)}:
            return found
    with suppress(OSError, ValueError, AttributeError):
        said = json.loads((folder / "config.json").read_bytes()).get("license")
        return {"license": said} if isinstance(said, str) and said else {}
    return {}
