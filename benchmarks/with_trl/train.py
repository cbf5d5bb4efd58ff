"""GRPO with TRL's `GRPOTrainer`, as `benchmarks/against_trl.py` calls it, in an environment of its own.

It reads one JSON object (the `setting` of that benchmark) from its argument, trains, and prints one JSON object:
`began_s` (when training began, after imports and loading) and `curve`, for each update the time of its end and, of its
samples, the mean reward, their number and the tokens drawn. Times are seconds since the epoch.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import reasoning_gym
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class Clock(TrainerCallback):
    """Notes the end of each update and figures of its samples."""

    def __init__(self) -> None:
        self.began_s = 0.0
        self.samples = (0.0, 0, 0)
        """The mean reward of the newest samples, their number, and their tokens."""
        self.curve: list[tuple[float, float, int, int]] = []

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.began_s = time.time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.curve.append((time.time(), *self.samples))


Score = Callable[..., list[float]]
"""From the completions of a batch and the columns of their rows to rewards."""


def main(setting: dict[str, Any]) -> None:
    torch.set_num_threads(setting["threads"])
    rows, score = own_task(setting) if "rewards" in setting else gym_task(setting)
    clock = Clock()

    def reward(completions: list[Any], completion_ids: list[list[int]], **columns: Any) -> list[float]:
        scores = score(completions, **columns)
        clock.samples = (sum(scores) / len(scores), len(scores), sum(map(len, completion_ids)))
        return scores

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(setting["model"], dtype=torch.float32),
        processing_class=AutoTokenizer.from_pretrained(setting["model"]),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(rows),
        args=arguments(setting),
        callbacks=[clock],
    )
    trainer.train()
    trainer.save_model(setting["output"] + "/model")
    print(json.dumps({"began_s": clock.began_s, "curve": clock.curve}))


def gym_task(setting: dict[str, Any]) -> tuple[list[dict[str, Any]], Score]:
    """Returns the rows of a reasoning-gym data set, and its own scorer."""
    task: Any = reasoning_gym.create_dataset(setting["dataset"], **setting["options"])

    def score(completions: Sequence[str], index: Sequence[int], **columns: Any) -> list[float]:
        pairs = zip(completions, index, strict=True)
        return [float(task.score_answer(completion.strip(), task[item])) for completion, item in pairs]

    return [{"prompt": entry["question"], "index": index} for index, entry in enumerate(task)], score


def own_task(setting: dict[str, Any]) -> tuple[list[dict[str, Any]], Score]:
    """Returns the rows of code that makes prompts, and the weighted sum of its reward functions."""
    source = named(setting["dataset"])(**setting["options"])
    functions = [(named(function), weight) for function, weight in setting["rewards"]]

    def score(completions: Sequence[Any], **columns: Any) -> list[float]:
        given = [(function(completions=completions, **columns), weight) for function, weight in functions]
        return [sum(scores[at] * weight for scores, weight in given) for at in range(len(completions))]

    return [source[index] for index in range(len(source))], score


def named(path: str) -> Any:
    """Returns what `module:name` names."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def arguments(setting: dict[str, Any]) -> GRPOConfig:
    """Returns the pipeline's own hyper-parameters, and otherwise those that make TRL fastest on a CPU."""
    batch = setting["batch_groups"] * setting["group_size"]
    return GRPOConfig(
        output_dir=setting["output"],
        max_steps=setting["updates"],
        # One generation call and one optimizer step for the whole batch, so that TRL needs no second forward pass.
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_iterations=1,
        num_generations=setting["group_size"],
        max_completion_length=setting["max_new_tokens"],
        temperature=setting["temperature"],
        top_p=1.0,
        top_k=0,
        shuffle_dataset=False,
        # The loss: token level over the batch, asymmetric clip, advantages divided by the group's deviation, no KL.
        loss_type="dapo",
        epsilon=setting["clip_low"],
        epsilon_high=setting["clip_high"],
        scale_rewards="group",
        beta=0.0,
        # The optimizer.
        learning_rate=setting["lr"],
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=setting["warmup_updates"],
        adam_beta1=setting["betas"][0],
        adam_beta2=setting["betas"][1],
        weight_decay=setting["weight_decay"],
        max_grad_norm=setting["grad_clip"],
        optim="adamw_torch_fused",
        # The machine: float32 on a CPU, nothing recomputed, nothing logged or saved meanwhile.
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataloader_pin_memory=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=setting["seed"],
    )


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
