"""The prompt encoder: after an observation the model reads the text that its chat template would have written."""

from itertools import product

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
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


FANCY = """{% generation %}{{ messages | tojson }}{% endgeneration %}
    {% set seen = namespace(count=0) %}
{% for m in messages %}
    {% if m.role == "tool" %}{% continue %}{% endif %}
    {% set seen.count = seen.count + 1 %}{{ bos_token }}{{ dict(role=m.role)["role"] }} {{ m["content"] }}
{% endfor %}{{ seen.count }}{{ tools is none }}{{ pad_token is defined }}"""
RAISES = "{{ raise_exception('System role not supported') }}"


def prompts(template: str | None, embeddings: int | None = None) -> tuple[PromptEncoder, PreTrainedTokenizerFast]:
    """Makes a tokenizer in which every byte is a token, and three words are special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: place for place, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|end|>", additional_special_tokens=["<|start|>"]
    )
    fast.chat_template = template
    return PromptEncoder(fast, 1_000, embeddings), fast


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


GOES_ON: list[Message] = [*ASKED, {"role": "assistant", "content": "Sure: "}]


@pytest.mark.parametrize(
    ("template", "messages"),
    [*product((CHATML, TIGHT, PLAIN, FANCY), (ASKED, ASKED[1:], [*GOES_ON, *ASKED]))],
)
def test_a_prompt_is_what_transformers_makes_of_its_messages(template: str, messages: list[Message]) -> None:
    ours, tokenizer = prompts(template)
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.encode(PromptRow(messages, {})).tolist() == expected


@pytest.mark.parametrize("template", [CHATML, TIGHT, PLAIN])
@pytest.mark.parametrize("words", ["Sure: ", "Sure:", "", "line\n"])
def test_the_assistants_last_words_are_continued_and_no_second_turn_begins(template: str, words: str) -> None:
    ours, tokenizer = prompts(template)
    messages = [*ASKED, Message(role="assistant", content=words)]
    expected = tokenizer.apply_chat_template(messages, continue_final_message=True, return_dict=False)
    assert ours.encode(PromptRow(messages, {})).tolist() == expected


@pytest.mark.parametrize("template", [CHATML, TIGHT])
def test_an_observation_follows_the_turn_that_the_assistant_began(template: str) -> None:
    ours, tokenizer = prompts(template)
    begun = [*ASKED, Message(role="assistant", content="I")]
    read = ours.encode(PromptRow(begun, {})).tolist()
    read += [*tokenizer(" bet")["input_ids"], tokenizer.eos_token_id]
    read += ours.observe(PromptRow(begun, {}), "They call.").tolist()
    said = [*ASKED, Message(role="assistant", content="I bet"), Message(role="user", content="They call.")]
    assert read == tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)


def test_a_template_that_changes_the_last_words_cannot_have_them_continued() -> None:
    ours, _ = prompts(FORGETS)
    with pytest.raises(PromptError, match="changes the assistant's last words"):
        ours.encode(PromptRow(GOES_ON, {}))


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (RAISES, "refuses it: System role not supported"),
        ("{{ messages[0].name.first }}", "UndefinedError: "),
        ("{{ 1 + '1' }}", "TypeError: "),
        ("{% for m in messages %}", "TemplateSyntaxError: "),
        ("{{ messages[0].__class__.__mro__ }}", "SecurityError: "),
        ("{{ range(10 ** 9) | list }}", "OverflowError: "),
    ],
)
def test_whatever_a_template_raises_is_said_of_its_prompt(template: str, said: str) -> None:
    ours, _ = prompts(template)
    for encode in (lambda: ours.encode(PromptRow(ASKED, {})), lambda: ours.observe(PromptRow(ASKED, {}), "x")):
        with pytest.raises(PromptError, match=said):
            encode()


@pytest.mark.parametrize("around", ["<|bos|> $A", "<|bos|> $A <|end|>", "<|bos|> <|start|> $A <|end|>", "$A <|end|>"])
def test_text_has_what_the_tokenizer_writes_before_it_once_and_nothing_after_it(around: str) -> None:
    _, tokenizer = prompts(None)
    special = [(name, tokenizer.convert_tokens_to_ids(name)) for name in ("<|bos|>", "<|start|>", "<|end|>")]
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single=around, special_tokens=special)
    ours = PromptEncoder(tokenizer, 1_000)
    opening = around.partition("$A")[0].replace(" ", "")
    expected = tokenizer(f"{opening}Sort", add_special_tokens=False)["input_ids"]
    for text in ("Sort", f"{opening}Sort"):
        assert ours.encode(PromptRow(text, {})).tolist() == expected


def test_a_token_that_the_model_has_no_embedding_for_is_refused_in_prompts_and_observations() -> None:
    ours, tokenizer = prompts(CHATML, embeddings=258)
    assert (ours.vocabulary, tokenizer.convert_tokens_to_ids("<|start|>")) == (258, 258)
    for encode in (
        lambda: ours.encode(PromptRow("a<|start|>", {})),
        lambda: ours.observe(PromptRow("a", {}), "<|start|>"),
    ):
        with pytest.raises(PromptError, match="token id 258, but the model knows only ids below 258"):
            encode()
