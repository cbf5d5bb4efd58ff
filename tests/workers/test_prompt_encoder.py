"""The prompt encoder: after an observation the model reads the text that its chat template would have written."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from echo_queue.errors import PromptError
from echo_queue.records import Message, PromptRow
from workers.prompt_encoder import PromptEncoder

CHATML = (
    "{% for m in messages %}<|start|>{{ m['role'] }}\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
TIGHT = (
    "<|bos|>{% for m in messages %}[{{ m['role'] }}]{{ m['content'] | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
FORGETS = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}<|end|>{% endfor %}"
ASKED: list[Message] = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Your move?"}]


def prompts(template: str | None) -> tuple[PromptEncoder, PreTrainedTokenizerFast]:
    """Makes a tokenizer in which every byte is a token, and three words are special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: place for place, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|end|>", additional_special_tokens=["<|start|>"]
    )
    fast.chat_template = template
    return PromptEncoder(fast, 1_000), fast


@pytest.mark.parametrize("template", [CHATML, TIGHT])
def test_prompt_turns_and_observations_are_the_template_of_the_whole_conversation(template: str) -> None:
    ours, tokenizer = prompts(template)
    row = PromptRow(ASKED, {})
    read, said = ours.encode(row).tolist(), list(ASKED)
    for text, observation in (("bet", "They call."), ("I fold, no: check", "They bet 2.\nYour move?")):
        read += [*tokenizer(text)["input_ids"], tokenizer.eos_token_id, *ours.observe(row, observation).tolist()]
        said += [{"role": "assistant", "content": text}, {"role": "user", "content": observation}]
    assert read == tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)


def test_a_template_that_ends_turns_without_a_special_token_is_observed_whole() -> None:
    ours, _ = prompts(PLAIN)
    assert ours.decode(ours.observe(PromptRow(ASKED, {}), "They call.").tolist()) == "\nuser: They call.\n"


def test_an_observation_in_text_is_read_as_it_is() -> None:
    ours, _ = prompts(None)
    observed = ours.observe(PromptRow("Your move?", {}), " They call.\n")
    assert observed.dtype == "int32"
    assert ours.decode(observed.tolist()) == " They call.\n"


def test_a_template_that_leaves_out_what_the_model_said_is_refused() -> None:
    ours, _ = prompts(FORGETS)
    with pytest.raises(PromptError, match="leaves out the model's own turns"):
        ours.observe(PromptRow(ASKED, {}), "x")


def test_chat_without_a_template_is_refused() -> None:
    ours, _ = prompts(None)
    with pytest.raises(PromptError, match="no chat template"):
        ours.encode(PromptRow(ASKED, {}))
