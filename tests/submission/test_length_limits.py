"""Prompt limits, asked of the model's own files."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from echo_queue.errors import PromptError, ServiceError
from echo_queue.queue.types import Chunk
from echo_queue.records import PromptRow
from echo_queue.submission.length_limits import PromptLimits, limits_of, refuse_unfit
from echo_queue.submission.sources.jsonl import JsonLinesSource

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
@settings(max_examples=300)
@given(texts=st.lists(st.text(max_size=20), min_size=1, max_size=8))
def test_the_quick_bound_never_differs_from_counting(limits: PromptLimits, texts: list[str]) -> None:
    counted = [(place, len(limits.tokenizer.encode(text))) for place, text in enumerate(texts)]
    expected = [(place, tokens) for place, tokens in counted if tokens > LIMIT]
    assert list(limits.excess([PromptRow(text, {}) for text in texts])) == expected


def test_bytes_bound_tokens_for_a_byte_level_tokenizer_only(limits: PromptLimits, tmp_path: Path) -> None:
    assert limits.certain_bytes == LIMIT - 1
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.save(str(tmp_path / "tokenizer.json"))
    found = limits_of(tmp_path, LIMIT)
    assert found is not None
    assert found.certain_bytes == -1


def test_contents_of_messages_count(limits: PromptLimits) -> None:
    messages = [{"role": "user", "content": "xyzq" * 4}, {"role": "user", "content": "!"}]
    assert [place for place, _ in limits.excess([PromptRow("short", {}), PromptRow(messages, {})])] == [1]


def test_prompts_that_are_too_long_are_named_by_line(limits: PromptLimits, tmp_path: Path) -> None:
    rows = [PromptRow("short", {}), PromptRow("xyzq" * 20, {})]
    with pytest.raises(PromptError, match=r"p\.jsonl:42: its prompt has 81 tokens, the model takes 12"):
        refuse_unfit(limits, JsonLinesSource(tmp_path / "p.jsonl"), Chunk(4, 40, 2), rows)


def test_chat_messages_need_a_chat_template(limits: PromptLimits, tmp_path: Path) -> None:
    source, chunk, rows = (
        JsonLinesSource(tmp_path / "p.jsonl"),
        Chunk(0, 0, 1),
        [PromptRow([{"role": "user", "content": "x"}], {})],
    )
    with pytest.raises(PromptError, match=r"p\.jsonl:1: .* the model has no chat template"):
        refuse_unfit(limits, source, chunk, rows)
    model = make_model(tmp_path / "chat")
    (model / "tokenizer_config.json").write_text('{"chat_template": "{{ messages }}"}')
    refuse_unfit(limits_of(model, LIMIT), source, chunk, rows)


def test_a_model_without_a_tokenizer_file_sets_no_limit(tmp_path: Path) -> None:
    assert limits_of(tmp_path / "Qwen" / "Qwen3-4B", LIMIT) is None


def test_a_damaged_tokenizer_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ServiceError, match=r"tokenizer\.json: is not a tokenizer"):
        limits_of(tmp_path, LIMIT)
