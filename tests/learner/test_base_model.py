"""The base model: normal Hugging Face folder, weak but not blank, made once, whole or not at all."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from configs.poker import Hand, Hands
from configs.poker.hands import EXAMPLES_SEED_OFFSET
from echo_queue.config import Config, ModelInit
from echo_queue.errors import ConfigError, PromptError
from echo_queue.records import PromptRow
from learner.base_model import MADE_FROM, make
from learner.base_model.task import Example, tasks_of, warmup_examples
from learner.base_model.tokenizer import EOS
from learner.base_model.warmup import IGNORED, _batches, _row, rearranged
from workers.prompt_encoder import PromptEncoder

OPTIONS = {"size": 64, "seed": 1, "min_numbers": 3, "max_numbers": 3, "max_decimals": 0, "min_value": 0, "max_value": 9}
TINY = {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate": 64, "warmup_prompts": 200}


def config(folder: Path, source: str = "reasoning-gym:number_sorting", seed: int = 0, **init: Any) -> Config:
    values = {
        "run": {"name": "test", "dir": folder, "seed": seed},
        "model": {"max_new_tokens": 12, "init": TINY | {"warmup_steps": 3, "warmup_batch": 8} | init},
        "prompts": {"source": source, "options": OPTIONS},
    }
    return Config.model_validate(values)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Config:
    settings = config(tmp_path_factory.mktemp("run"))
    make(settings)
    return settings


def weights(folder: str) -> bytes:
    return (Path(folder) / "model.safetensors").read_bytes()


def test_the_folder_opens_with_the_auto_classes(made: Config) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made.base_model)
    model: Any = AutoModelForCausalLM.from_pretrained(made.base_model)
    assert tokenizer.is_fast and tokenizer.chat_template is None
    assert model.config.model_type == "qwen3" and model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert tokenizer.pad_token_id not in (None, tokenizer.eos_token_id)
    batch = tokenizer(["Sort", "Sort these"], return_tensors="pt", padding=True)
    assert model.generate(**batch, max_new_tokens=2).shape[0] == 2


def test_whoever_may_read_its_config_json_may_read_its_weights(made: Config) -> None:
    folder = Path(made.base_model)
    assert len({(folder / name).stat().st_mode for name in ("config.json", "model.safetensors")}) == 1


def test_wording_that_all_prompts_share_is_a_few_tokens_and_numbers_are_one_each(made: Config) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made.base_model)
    prompt = warmup_examples(tasks_of(made)[0], 1)[0].prompt
    pieces = [str(tokenizer.decode([token])) for token in tokenizer(prompt)["input_ids"]]
    assert len(prompt) > 300 and len(pieces) <= 8
    assert sum(piece.rstrip(", ") in {f"{digit}.0" for digit in range(10)} for piece in pieces) == 3


@pytest.mark.parametrize("text", ["['1.0', '22.5']", "żółw 🐢\n\ttab  two spaces , .", "-3.14, <x>"])
def test_any_text_comes_back_from_the_tokenizer_unchanged(made: Config, text: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(made.base_model)
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text and tokenizer.eos_token_id not in ids


def test_a_second_call_keeps_the_model(made: Config) -> None:
    path, said = Path(made.base_model) / "model.safetensors", list[str]()
    before = path.stat()
    make(made, said.append)
    assert path.stat() == before and said == [f"the base model exists: {made.base_model}"]


def test_the_same_settings_make_the_same_model_and_another_seed_another(made: Config, tmp_path: Path) -> None:
    again, other = config(tmp_path / "again"), config(tmp_path / "other", seed=1)
    make(again)
    make(other)
    assert weights(again.base_model) == weights(made.base_model) != weights(other.base_model)


def test_other_settings_replace_the_model(tmp_path: Path) -> None:
    make(config(tmp_path))
    changed = config(tmp_path, warmup_steps=4)
    before = weights(changed.base_model)
    make(changed)
    assert weights(changed.base_model) != before
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_a_folder_without_the_mark_of_a_whole_model_is_made_anew(tmp_path: Path) -> None:
    folder = Path(config(tmp_path).base_model)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"half")
    make(config(tmp_path))
    assert (folder / MADE_FROM).is_file() and len(weights(str(folder))) > 1_000


def test_an_interrupted_making_leaves_no_model(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("warm-up"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(config(tmp_path), interrupt)
    assert not list(tmp_path.iterdir())


def test_prompts_that_are_no_reasoning_gym_set_need_a_model_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.base.*prompts\.jsonl(.|\n)*name a model folder or a hub model"):
        make(config(tmp_path, source="prompts.jsonl"))


def test_warm_up_prompts_are_not_the_runs_own() -> None:
    settings = config(Path("unused"))
    wide = settings.prompts.options | {"max_value": 1_000_000}
    settings = settings.model_copy(update={"prompts": settings.prompts.model_copy(update={"options": wide})})
    task = tasks_of(settings)[0]
    own = {example.prompt for example in warmup_examples(tasks_of(settings)[0], 64)}
    import reasoning_gym

    run = reasoning_gym.create_dataset(task.dataset, **settings.prompts.options)
    assert own.isdisjoint(entry["question"] for entry in run)


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [
        ("['1.0', '2.0', '-3.5']", {"['-3.5', '2.0', '1.0']", "['2.0', '-3.5', '1.0']", "['-3.5', '1.0', '2.0']"}),
        ("abc", {"cba", "bca", "cab"}),
        ("7", {"42"}),
    ],
)
def test_a_wrong_target_has_the_right_ones_form(answer: str, wrong: set[str]) -> None:
    others = [Example("?", "42")]
    rng = random.Random(0)
    assert {rearranged(answer, others, rng) for _ in range(100)} == wrong


POKER: dict[str, Any] = {"size": 8, "seed": 1, "opponent": "random"}


def poker(folder: Path) -> Config:
    made = config(folder, source="configs.poker:Hands")
    return made.model_copy(update={"prompts": made.prompts.model_copy(update={"options": POKER})})


def test_examples_of_poker_are_whole_hands_of_legal_moves_that_the_run_does_not_hold(tmp_path: Path) -> None:
    task = tasks_of(poker(tmp_path))[0]
    deals = Hands(**POKER | {"seed": 1 + EXAMPLES_SEED_OFFSET})
    examples = warmup_examples(task, 60)
    for index, example in enumerate(examples):
        hand = Hand(deals.deal(index))
        assert (example.prompt, example.may_be_wrong) == (hand.prompt, False)
        said = [example.answer, *(answer for _, answer in example.turns)]
        assert all(hand.named(move) and isinstance(hand.reply(move), str) for move in said[:-1])
        assert hand.named(said[-1]) and isinstance(hand.reply(said[-1]), float)
    assert max(len(example.turns) for example in examples) > 1


def test_a_set_without_examples_needs_a_model_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Hands, "examples")
    with pytest.raises(PromptError, match=r"model\.base.*examples\(count\).*configs\.poker:Hands"):
        make(poker(tmp_path))


def test_other_examples_make_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(poker(tmp_path))
    before = weights(poker(tmp_path).base_model)
    monkeypatch.setattr("configs.poker.hands.EXAMPLES_SEED_OFFSET", EXAMPLES_SEED_OFFSET + 1)
    make(poker(tmp_path))
    assert weights(poker(tmp_path).base_model) != before


def test_a_hand_is_encoded_as_workers_encode_it_and_only_what_is_said_is_learned(tmp_path: Path) -> None:
    settings = poker(tmp_path)
    make(settings)
    tokenizer = AutoTokenizer.from_pretrained(settings.base_model)
    prompts = PromptEncoder.open(settings.base_model, 128)
    example = next(one for one in warmup_examples(tasks_of(settings)[0], 60) if one.turns)
    turns = [(example.prompt, example.answer), *example.turns]
    tokens, targets = _row(tokenizer, turns)
    row, read, aims = PromptRow(example.prompt, {}), list[int](), list[int]()
    for place, (told, said) in enumerate(turns):
        heard = (prompts.observe(row, told) if place else prompts.encode(row)).tolist()
        answer = [*tokenizer(said)["input_ids"], tokenizer.eos_token_id]
        read += heard + answer
        aims += [IGNORED] * len(heard) + answer
    assert (tokens, targets) == (read, aims)


@pytest.mark.slow
def test_a_warmed_up_model_knows_the_format_and_rarely_the_answer(tmp_path: Path) -> None:
    settings = config(tmp_path, hidden=64, warmup_steps=150, warmup_batch=64, warmup_lr=3e-3)
    make(settings)
    tokenizer = AutoTokenizer.from_pretrained(settings.base_model)
    model: Any = AutoModelForCausalLM.from_pretrained(settings.base_model)
    examples = warmup_examples(tasks_of(settings)[0], 64)
    batch = tokenizer([example.prompt for example in examples], return_tensors="pt", padding=True)
    output = model.generate(**batch, max_new_tokens=12, do_sample=False)
    answers = tokenizer.batch_decode(output[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    well_formed = sum(answer.startswith("['") and answer.endswith("']") for answer in answers)
    right = sum(answer == example.answer for answer, example in zip(answers, examples, strict=True))
    assert well_formed >= 0.9 * len(answers)
    assert right <= 0.5 * len(answers)


def mixed(folder: Path) -> Config:
    """Three components, of which the last is the same dataset as the first, with other settings."""
    generated = [("sort", "number_sorting", OPTIONS), ("add", "chain_sum", {"seed": 1}), ("long", "number_sorting", {})]
    values = config(folder).model_dump(exclude={"prompts"})
    components = [
        {"name": name, "source": f"reasoning-gym:{dataset}", "options": options} for name, dataset, options in generated
    ]
    return Config.model_validate(values | {"mixture": components})


def test_a_mixtures_model_is_warmed_up_on_the_tasks_of_all_components(tmp_path: Path) -> None:
    settings = mixed(tmp_path)
    tasks = tasks_of(settings)
    assert [(task.dataset, task.settings.get("max_numbers")) for task in tasks] == [
        ("number_sorting", 3),
        ("chain_sum", None),
        ("number_sorting", None),
    ]
    make(settings)
    tokenizer = AutoTokenizer.from_pretrained(settings.base_model)
    for task in tasks[:2]:  # the wording of each is a few tokens, as if it were alone
        prompt = warmup_examples(task, 1)[0].prompt
        assert len(tokenizer(prompt)["input_ids"]) <= len(prompt) / 4
    before = weights(settings.base_model)
    shares = [one.model_copy(update={"weight": 9.0}) for one in settings.mixture]
    make(settings.model_copy(update={"mixture": tuple(shares)}))
    assert weights(settings.base_model) == before, "shares change no warm-up"
    make(settings.model_copy(update={"mixture": settings.mixture[:2]}))
    assert weights(settings.base_model) != before


def test_every_batch_of_the_warm_up_mixes_the_tasks_and_a_wrong_answer_is_one_of_its_own_task() -> None:
    tasks = [[Example(f"{name} {number}", name) for number in range(40)] for name in ("sort", "add")]
    seen: list[tuple[str, str]] = []

    class Noting:
        def __call__(self, texts: list[str]) -> dict[str, list[list[int]]]:
            seen.append((texts[0], texts[1]))
            return {"input_ids": [[0] for _ in texts]}

    settings = ModelInit(warmup_batch=32, warmup_correct=0.0)
    next(_batches(Noting(), tasks, settings, random.Random(0)))  # type: ignore[arg-type]
    assert {prompt.split()[0] for prompt, _ in seen} == {"sort", "add"}
    letters = {"sort": set("sort"), "add": set("add")}
    assert all(set(answer.removesuffix(EOS)) == letters[prompt.split()[0]] for prompt, answer in seen)


def test_a_component_of_a_file_needs_a_model_of_the_users_own(tmp_path: Path) -> None:
    settings = mixed(tmp_path)
    file = settings.mixture[1].model_copy(update={"source": "prompts.jsonl"})
    with pytest.raises(ConfigError, match=r"mixture\[1\]\.source is 'prompts\.jsonl'"):
        tasks_of(settings.model_copy(update={"mixture": (settings.mixture[0], file)}))
