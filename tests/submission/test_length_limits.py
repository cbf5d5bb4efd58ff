"""Prompt limits, asked of the model's own files."""

from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from echo_queue.errors import PromptError, ServiceError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.length_limits import PromptLimits, limits_of, refuse_unfit
from echo_queue.submission.sources.registry import open_source
from workers.prompt_encoder import PromptEncoder

LIMIT = 12


def make_model(folder: Path) -> Path:
    """A folder with a byte-level BPE tokenizer that puts one token before every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>"], initial_alphabet=alphabet)
    tokenizer.train_from_iterator(["hello world"] * 10, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $0", special_tokens=[("<s>", 0)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> PromptLimits:
    found = limits_of(make_model(tmp_path_factory.mktemp("model")), LIMIT)
    assert found is not None
    return found


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(texts=st.lists(st.text(max_size=20), min_size=1, max_size=8))
def test_the_quick_bound_never_differs_from_counting(limits: PromptLimits, texts: list[str]) -> None:
    counted = [(place, len(limits.tokenizer.encode(text))) for place, text in enumerate(texts)]
    expected = [(place, tokens) for place, tokens in counted if tokens > LIMIT]
    found = [(at, int(one.what.split()[3])) for at, one in limits.unfit([PromptRow(text, {}) for text in texts])]
    assert found == expected


def test_bytes_bound_tokens_for_a_byte_level_tokenizer_only(limits: PromptLimits, tmp_path: Path) -> None:
    assert limits.certain_bytes == LIMIT - 1
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.save(str(tmp_path / "tokenizer.json"))
    found = limits_of(tmp_path, LIMIT)
    assert found is not None
    assert found.certain_bytes == -1


def placed(folder: Path, first: int, count: int) -> Chunk:
    """Returns a chunk of `p.jsonl` in a folder."""
    ticket = {"file": str(folder / "p.jsonl"), "start": first, "row": first, "rows": count}
    return Chunk(0, first, count, ticket=orjson.dumps(ticket).decode())


def test_prompts_that_are_too_long_are_named_by_line(limits: PromptLimits, tmp_path: Path) -> None:
    rows = [PromptRow("short", {}), PromptRow("xyzq" * 20, {})]
    with pytest.raises(PromptError, match=r"p\.jsonl:42: its prompt has 81 tokens, the model takes 12"):
        refuse_unfit(limits, open_source(str(tmp_path / "p.jsonl")), placed(tmp_path, 40, 2), rows)


def chat(*contents: str, role: str = "user") -> PromptRow:
    return PromptRow([{"role": role, "content": content} for content in contents], {})


def test_chat_messages_need_a_chat_template(limits: PromptLimits, tmp_path: Path) -> None:
    source, chunk, rows = open_source(str(tmp_path / "p.jsonl")), placed(tmp_path, 0, 1), [chat("x")]
    with pytest.raises(PromptError, match=r"p\.jsonl:1: .* the model has no chat template"):
        refuse_unfit(limits, source, chunk, rows)
    for folder, name, content in (
        ("config", "tokenizer_config.json", '{"chat_template": "{{ messages | length }}"}'),
        ("list", "tokenizer_config.json", '{"chat_template": [{"name": "default", "template": "x"}]}'),
        ("file", "chat_template.jinja", "x"),
    ):
        model = make_model(tmp_path / folder)
        (model / name).write_text(content)
        refuse_unfit(limits_of(model, LIMIT), source, chunk, rows)


STRICT = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}{% endfor %}"
)


def test_a_chat_is_judged_as_a_worker_writes_and_counts_it(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    (model / "chat_template.jinja").write_text(STRICT)
    limits = limits_of(model, LIMIT)
    found = {at: one.what for at, one in limits.unfit([chat("1"), chat("1", role="system"), chat("12", "345")])}
    assert list(found) == [1, 2]
    assert found[1] == "the model's chat template refuses it: System role not supported"
    assert found[2] == f"its prompt has {len('[user] 12[user] 345')} tokens, the model takes {LIMIT}"
    encoder = PromptEncoder(PreTrainedTokenizerFast.from_pretrained(model), 1000)
    assert len(encoder.encode(chat("12", "345"))) == len("[user] 12[user] 345")


@pytest.mark.parametrize("named", ["{}", '{"bos_token": "<s>"}', '{"bos_token": null}'])
def test_a_special_token_that_no_file_names_may_be_the_class_s_own(tmp_path: Path, named: str) -> None:
    model = make_model(tmp_path)
    (model / "chat_template.jinja").write_text("{{ bos_token + messages[0].content }}")
    (model / "tokenizer_config.json").write_text(named)
    told = [one.what for _, one in limits_of(model, LIMIT).unfit([chat("x")])]
    assert [what.rpartition("it: ")[2][:14] for what in told] == (["UndefinedError"] if "null" in named else [])


def test_an_id_that_the_model_does_not_know_is_named_wherever_it_comes_from(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    known = tokenizer.get_vocab_size()
    tokenizer.add_tokens(["<think>"])
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "config.json").write_text(f'{{"vocab_size": {known}}}')
    (model / "chat_template.jinja").write_text(
        "{{ messages[0].content }}{% if add_generation_prompt %}<think>{% endif %}"
    )
    limits = limits_of(model, LIMIT)
    found = dict(limits.unfit([PromptRow("x", {}), PromptRow("x <think>", {}), chat("x"), chat("x", role="assistant")]))
    assert list(found) == [1, 2] and f"has the token id {known}, but the model knows only ids below" in found[1].what
    assert limits.unknown_stop() is None
    (model / "tokenizer_config.json").write_text('{"eos_token": "<think>"}')
    problem = limits_of(model, LIMIT).unknown_stop()
    assert problem and f"ends answers with <think>, id {known}" in problem.what


def test_a_model_without_a_tokenizer_file_sets_no_limit(tmp_path: Path) -> None:
    assert limits_of(tmp_path / "Qwen" / "Qwen3-4B", LIMIT) is None


def test_a_damaged_tokenizer_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ServiceError, match=r"tokenizer\.json: is not a tokenizer"):
        limits_of(tmp_path, LIMIT)
    (make_model(tmp_path) / "tokenizer_config.json").write_text("{")
    with pytest.raises(ServiceError, match=r"tokenizer_config\.json: is not JSON"):
        limits_of(tmp_path, LIMIT)
