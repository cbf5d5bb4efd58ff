"""Prints the bytes by which a few updates of a model raise this process's peak memory.

Arguments: the sections of a configuration, and a model's config.json, both as JSON.
"""

import gc
import json
import re
import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from echo_queue.config import Config
from echo_queue.records import Group
from learner.model.loading import prepare
from learner.model.lora.adapters import Adapters
from learner.model.policy import Policy
from learner.update import learn
from tests.learner.synthetic import group, tiny_model

UPDATES = 2
"""The second has the moments of the first."""


def train(model: PreTrainedModel, run: Config, groups: list[Group]) -> None:
    adapters = Adapters(model, run.model.lora) if run.model.lora.rank else None
    policy = Policy(prepare(model), run.learner, getattr(torch, run.model.dtype), adapters=adapters)
    for number in range(UPDATES):
        learn(policy, groups, number + 1, run.learner, 1.0)


def resident(key: str) -> int:
    """VmRSS, the memory that is resident now, or VmHWM, the most that ever was (proc(5))."""
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found
    return int(found[1]) * 1024


def main(run: Config, model: dict[str, object]) -> None:
    torch.set_num_threads(1)
    samples, length = run.rollout.group_size, run.model.max_new_tokens
    groups = [
        group(index, run.model.max_prompt_tokens, [length] * samples, [1] + [0] * (samples - 1))
        for index in range(run.learner.batch_groups)
    ]
    # What torch itself needs is there before anything is measured.
    train(tiny_model(), run, [group(0)])
    gc.collect()
    before = resident("VmRSS")
    train(AutoModelForCausalLM.from_config(AutoConfig.for_model(**model)), run, groups)
    print(resident("VmHWM") - before)


if __name__ == "__main__":
    main(Config.model_validate(json.loads(sys.argv[1])), json.loads(sys.argv[2]))
