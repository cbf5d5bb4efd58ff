"""The ways in which a first run fails that can be known before anything starts, and what is then said."""

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Generic, NamedTuple, TypeVar

from echo_queue.config.rewards import KINDS
from tests.first_hour.home import BUCKET, CONFIG, ROWS, Home, ServedHome

Place = TypeVar("Place", bound=Home)
Spoil = Callable[[Home], object]


class Failure(NamedTuple, Generic[Place]):
    """`spoil` makes one mistake in a home. `where`, `what` and `fix` are in the one problem that is then told."""

    cause: str
    spoil: Callable[[Place], object]
    where: str
    what: str
    fix: str


def setting(**values: str) -> Spoil:
    """Returns what sets variables of the environment, which stand for keys of the file."""
    return lambda home: home.set(**values)


def variable(name: str, value: str) -> Spoil:
    """Returns what sets a variable that is not of this project."""
    return lambda home: home.set_plain(name, value)


def written(name: str, content: str) -> Spoil:
    """Returns what writes a file of the home anew."""
    return lambda home: home.text(name, content)


def configured(name: str, value: str) -> Callable[[ServedHome], object]:
    """Returns what changes a setting of the user's Redis."""
    return lambda home: home.configure(name, value)


def both(first: Spoil, second: Spoil) -> Spoil:
    """Returns what makes two mistakes, which together are one."""
    return lambda home: (first(home), second(home))


def rows(*rows: object) -> Spoil:
    """Returns what writes other prompts."""
    return lambda home: home.rows(*rows)


def take_peer_port(home: Home) -> None:
    """Names a port that somebody else has for the only worker's peers."""
    home.set(weights__peer_port=str(home.take_port()), rollout__workers="1")


def displace(home: Home) -> None:
    """Names a folder in PYTHONPATH whose module has the name of a package of ours."""
    (home.folder / "path").mkdir(exist_ok=True)
    home.text("path/learner.py", "")
    home.set_plain("PYTHONPATH", str(home.folder / "path"))


def refused_by_template(home: Home) -> None:
    """Gives the model a chat template that takes no system message, and the prompts one."""
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    home.text("model/chat_template.jinja", refuses)
    home.rows({"prompt": [{"role": "system", "content": "one"}], "answer": "1"})


def _model() -> Iterator[Failure[Home]]:
    where, config = "model.base", "model/config.json"
    yield Failure("no folder", setting(model__base="./none"), where, "no folder on this machine", "Qwen/Qwen3-0.6B")
    yield Failure(
        "no such folder", setting(model__base="bases"), where, "there is no folder bases (looked in", "OWNER/"
    )
    yield Failure("no config.json", lambda home: home.remove(config), where, "has no config.json", "Hugging Face")
    yield Failure("torn config.json", written(config, "{"), config, "is not JSON", "download")
    yield Failure("another family", lambda home: home.model(model_type="bert"), where, "bert", "")
    yield Failure("quantised", lambda home: home.model(quantization_config={"quant_method": "awq"}), where, "awq", "")
    window = {"model_type": "llama", "sliding_window": 4}
    yield Failure("a window that is ignored", lambda home: home.model(**window), where, "sliding_window of 4", "remove")
    weights = "model/model.safetensors"
    few = {"max_position_embeddings": 4}
    yield Failure("too short", lambda home: home.model(**few), "model.max_new_tokens", "takes at most 4", "lower")
    yield Failure("no weights", lambda home: home.remove(weights), where, "has no weights", "as safetensors")
    tokenizer = "model/tokenizer.json"
    yield Failure("no tokenizer", lambda home: home.remove(tokenizer), where, "has no tokenizer", "copy")
    yield Failure("torn tokenizer", written(tokenizer, "{"), tokenizer, "is not a tokenizer", "fetch")
    adapters = "model.lora.alpha"
    yield Failure("half of LoRA", setting(model__lora__alpha="8"), adapters, "not used while rank is 0", "set rank")


def folder_of(*names: str) -> Spoil:
    """Returns what makes the prompts a folder of these files, all empty."""

    def spoil(home: Home) -> None:
        (home.folder / "parts").mkdir(exist_ok=True)
        for name in names:
            home.text(f"parts/{name}", "")
        home.set(prompts__source="parts")

    return spoil


def source_of(name: str, content: str | bytes) -> Spoil:
    """Returns what makes a file the source of the prompts."""
    data = content if isinstance(content, bytes) else content.encode()
    return both(lambda home: home.write_bytes(name, data), setting(prompts__source=name))


def _forms() -> Iterator[Failure[Home]]:
    packed = gzip.compress(json.dumps(ROWS[0]).encode())
    damaged = "is damaged, or not packed as its name says"
    yield Failure(
        "torn gzip", source_of("a.jsonl.gz", packed[:-9]), "a.jsonl.gz", f"{damaged}: it ends", "pack it again"
    )
    yield Failure("no gzip", source_of("a.jsonl.gz", json.dumps(ROWS[0])), "a.jsonl.gz", damaged, "by what it is")
    yield Failure("no zstd", source_of("a.csv.zst", "prompt\none\n"), "a.csv.zst", damaged, "by what it is")
    yield Failure("packed Parquet", source_of("a.parquet.gz", packed), "a.parquet.gz", "packed Parquet", "unpack it")
    lines = "\n".join(map(json.dumps, ROWS))
    yield Failure(
        "lines named .json", source_of("a.json", lines), "a.json:2", "after its first value", "name it .jsonl"
    )
    records = json.dumps({"prompt": {"0": "one"}, "answer": {"0": "1"}})
    yield Failure("columns by index", source_of("a.json", records), "a.json", "`prompt` is an object", "orient=")
    uneven = json.dumps({"prompt": ["one", "and"], "answer": ["1"]})
    yield Failure("uneven columns", source_of("a.json", uneven), "a.json", "2 in prompt, 1 in answer", "a list")
    semicolons = source_of("a.csv", "prompt;answer\none;1\n")
    yield Failure(
        "semicolons", semicolons, "a.csv:1", "one column alone, 'prompt;answer'", "separate columns by commas"
    )
    quote = source_of("a.csv", 'prompt,answer\n"one" and,1\n')
    yield Failure("a quote inside", quote, "a.csv:2", "cannot be read: ','", "double the quotes")
    yield Failure(
        "too few values", source_of("a.csv", "prompt,answer\none\n"), "a.csv row 1", "1 values for 2", "quotes"
    )
    latin = source_of("a.csv", "prompt,answer\nüber,1\n".encode("latin-1"))
    yield Failure("Latin-1", latin, "a.csv", "is not UTF-8 here", "save the file as UTF-8")


def _buckets() -> Iterator[Failure[Home]]:
    """Rows for what needs a server are in `_own_servers`, and in `tests/submission/test_bucket.py`."""
    nameless = setting(prompts__source="s3:///a.jsonl")
    yield Failure("no bucket's name", nameless, "prompts.source", "'s3:///a.jsonl' names no bucket", "s3://BUCKET/KEY")
    packed = setting(prompts__source="s3://mine/a.parquet.gz")
    yield Failure("packed Parquet in a bucket", packed, "a.parquet.gz", "packed Parquet", "unpack it")
    profile = both(setting(prompts__source="s3://mine/a.jsonl"), variable("AWS_PROFILE", "nobody"))
    yield Failure("no profile", profile, "s3://mine/a.jsonl", "profile (nobody) could not be found", "AWS_PROFILE")


def _mapping() -> Iterator[Failure[Home]]:
    first, where = "prompts.jsonl:1", "prompts.map"

    def mapping(**values: str) -> Spoil:
        return setting(**{f"prompts__map__{key}": value for key, value in values.items()})

    unknown = mapping(template="{question}?")
    yield Failure(
        "no column of the template", unknown, first, "no column `question`, which prompts.map.template", "name"
    )
    columns = mapping(columns='{prompt = "question"}')
    yield Failure("no column to rename", columns, first, "no column `question`, which prompts.map.columns", "name")
    sought = mapping(extract='{answer = "#### (.+)"}')
    yield Failure(
        "nothing to extract", sought, first, "has nothing that '#### (.+)' finds: 'two'", "another expression"
    )
    ranges = mapping(ranges="{answer = [0, 1]}")
    yield Failure(
        "no number", ranges, first, "its `answer` is text, and prompts.map.ranges compares numbers", "a number"
    )
    yield Failure("all left out", mapping(min_characters="99"), where, "leaves out every row of", "keep some of them")
    generated = both(
        mapping(system="Be brief."),
        setting(prompts__source="reasoning-gym:chain_sum", prompts__options="{seed = 1}"),
    )
    yield Failure("a map of a generated set", generated, where, "means nothing to reasoning-gym:chain_sum", "remove it")
    broken = mapping(extract='{answer = "("}')
    yield Failure("no expression", broken, f"{where}.extract.answer", "no regular expression: missing )", "")
    yield Failure("a template of no column", mapping(template="Hi"), f"{where}.template", "names no column", "")
    backwards = mapping(ranges="{level = [2, 1]}")
    yield Failure("a range backwards", backwards, f"{where}.ranges.level", "ends below its beginning", "")
    parts = mapping(split="[0.9, 0.1]")
    yield Failure("a part of nothing", parts, f"{where}.split", "no part of 0 to 1", "")
    lengths = mapping(min_characters="9", max_characters="8")
    yield Failure("lengths backwards", lengths, where, "max_characters is below min_characters", "")


def _prompts() -> Iterator[Failure[Home]]:
    source, file = "prompts.source", "prompts.jsonl"
    yield Failure("no source", setting(prompts__source=""), source, "no source is named", "a .jsonl, .json")
    yield Failure("no file", setting(prompts__source="none.jsonl"), "none.jsonl", "cannot be read", "")
    yield Failure(
        "wrong suffix", setting(prompts__source="prompts.txt"), source, "'prompts.txt' is not a source", ".csv"
    )
    yield Failure("empty folder", folder_of(), "parts", "has no file of prompts", ".jsonl")
    yield Failure("folder of two forms", folder_of("a.jsonl", "b.csv"), "parts", "several forms: a.jsonl, b.csv", "one")
    nowhere = setting(prompts__source="hf:./parts:main:train")
    yield Failure("no folder of a data set", nowhere, "/parts:main:train", "no such folder", "hf:NAME:CONFIG:SPLIT")
    yield Failure("no data set", setting(prompts__source="hf:"), source, "no name of a data set", "openai/gsm8k")
    yield from _buckets()
    yield from _forms()
    yield from _mapping()
    yield Failure("hub name", setting(prompts__source="openai/gsm8k"), source, "is not a source", "a .jsonl")
    yield Failure("no prompts", lambda home: home.rows(), file, "is empty", "one prompt per line")
    wrong = {"question": "one"}
    yield Failure(
        "no column", lambda home: home.rows(wrong), f"{file}:1", "(columns: question)", "that column `prompt`"
    )
    torn = '{"prompt": "one", answer: 1}'
    yield Failure("torn line", lambda home: home.rows(ROWS[0], torn), f"{file}:2", "at column 19", "one JSON object")
    array = json.dumps(ROWS, indent=1)
    yield Failure("one value of many lines", written(file, array), f"{file}:1", "over several lines", "jq -c '.[]'")
    yield Failure("blank line", lambda home: home.rows(ROWS[0], ""), f"{file}:2", "is empty", "remove the line")
    bom = '\ufeff{"prompt": "one"}'
    yield Failure("byte order mark", lambda home: home.rows(bom), f"{file}:1", "byte order mark", "without it")
    long = {"prompt": "one " * 9, "answer": "1"}
    yield Failure("too long", lambda home: home.rows(long), f"{file}:1", "9 tokens, the model takes 8", "max_prompt")
    chat = {"prompt": [{"role": "user", "content": "one"}], "answer": "1"}
    yield Failure("no chat template", lambda home: home.rows(chat), f"{file}:1", "no chat template", "submit text")
    yield Failure("refused by the template", refused_by_template, f"{file}:1", "System role not supported", "template")
    yield Failure("a token too many", lambda home: home.model(vocab_size=2), f"{file}:2", "token id 2", "leave that")
    unknown = setting(prompts__source="reasoning-gym:sums", prompts__options="{seed = 1}")
    made = setting(prompts__source="reasoning-gym:chain_sum", prompts__options="{seed = 1}")
    yield Failure("too long, generated", made, "chain_sum item 0", "tokens, the model takes 8", "max_prompt")
    yield Failure("unknown set", unknown, source, "has no dataset 'sums'", "choose one of")
    unseeded = setting(prompts__source="reasoning-gym:chain_sum")
    yield Failure("no seed", unseeded, "prompts.options", "needs a seed", "add seed = 1")


def _reward() -> Iterator[Failure[Home]]:
    where = "environment.function"
    yield Failure("no module", lambda home: home.remove("rewards.py"), where, "no module rewards", "in the folder of")
    taken = setting(environment__function="learner:right")
    with_learner = written("learner.py", "def right(completions, answer, **columns): return [0.0]\n")
    name = "learner.py in this folder cannot be imported: Echo Queue's own learner"
    yield Failure("a taken name", both(taken, with_learner), where, name, "my_learner.py")
    yield Failure("PYTHONPATH", displace, "PYTHONPATH", "in place of Echo Queue's own learner", "take that folder out")
    yield Failure("misspelt", setting(environment__function="rewards:rigth"), where, "defines no rigth", "mean right?")
    yield Failure(
        "no colon",
        setting(environment__function="rewards"),
        where,
        'is "rewards", in which no colon',
        '"module:function"',
    )
    yield Failure("a dot", setting(environment__function="rewards.right"), where, "no colon", 'write "rewards:right"')
    yield Failure("no function", setting(environment__function=""), where, "is missing, but", '"module:function"')
    for name in ("rewards.py", "./rewards.py", "./rewards"):
        path = setting(environment__function=f"{name}:right")
        yield Failure(f"the file {name}", path, where, f"{name} is a file's name", 'write "rewards:right"')
    lacking = written("rewards.py", "import json, none.of_it\ndef right(completions, **columns): return [0.0]\n")
    yield Failure("a package too few", lacking, where, "rewards.py imports none, and there is no", "install")
    yield Failure("no Python", written("rewards.py", "def right(:\n"), where, "line 1", "fix that line")
    yield Failure("no answers", lambda home: home.rows({"prompt": "one"}), where, "needs the columns answer", "rename")
    narrow = "def right(completions): return [0.0]\n"
    yield Failure("takes no columns", written("rewards.py", narrow), where, "does not take answer", "add **columns")
    math = setting(environment__kind="math", environment__function="", prompts__source="reasoning-gym:chain_sum",
                   prompts__options="{seed = 1}", model__max_prompt_tokens="99")  # fmt: skip
    unread = setting(environment__kind="math", environment__function="")
    for answer in ("\\", "\\boxed{}", "$$"):
        spoil = both(unread, rows({"prompt": "one", "answer": "1/2"}, {"prompt": "two", "answer": answer}))
        told = "cannot be compared with: math-verify finds no answer"
        yield Failure(f"an answer {answer[:8]}", spoil, "prompts.jsonl:2", told, "write a number")
    nothing = both(unread, rows({"prompt": "one", "answer": None}))
    yield Failure("an answer of nothing", nothing, "prompts.jsonl:1", "has nothing in answer", "write it")
    gym = setting(environment__kind="reasoning-gym", environment__function="")
    told = "scores the prompts of its own sets alone (columns dataset, options, index); the prompts have answer"
    yield Failure("no kind of environment", gym, "environment.kind", told, 'write kind = "function"')
    yield Failure("math without answers", math, "environment.kind", "answer or solution", "rename the column")


def tables(rewards: str) -> Spoil:
    """Returns what names reward functions in tables, in place of the only one."""
    return setting(environment__function="", environment__rewards=rewards)


def _rewards() -> Iterator[Failure[Home]]:
    where = "environment.rewards"
    kinds, short = f"exactly one of {', '.join(KINDS)}", "overlong = {max_tokens = 8, cache_tokens = 4}"
    twice = setting(environment__rewards=f"{{short = {{{short}}}}}")
    yield Failure("named twice", twice, "environment.function", "so do the tables", "a table of its own")
    for cause, table, what, fix in (
        ("no function", "weight = 2.0", f"has no function; a reward has {kinds}", "one table for each"),
        (
            "two functions",
            f'function = "rewards:right", {short}',
            "has function and overlong; a reward",
            "one table for",
        ),
    ):
        yield Failure(cause, tables(f"{{one = {{{table}}}}}"), f"{where}.one", what, fix)
    for cause, key, table, what, fix in (
        ("a dot", "function", 'function = "rewards.right"', "no colon divides", 'write "module:function"'),
        ("a ready-made one", "function", 'function = "format"', "no colon", "format = {…} is the ready-made one"),
        ("misspelt", "function", 'function = "rewards:rigth"', "defines no rigth", "did you mean right?"),
        ("a weight misspelt", "wieght", f"{short}, wieght = 2.0", "unknown key", "did you mean weight?"),
        ("no weight", "weight", f"{short}, weight = nan", "finite", "write a finite number"),
        ("no pattern", "format.pattern", "format = {pattern = '(a'}", "no regular expression: missing )", "single quo"),
        ("half a length", "overlong.cache_tokens", "overlong = {max_tokens = 8}", "is missing", "add it"),
        ("a length misspelt", "overlong.max_token", f"{short[:-1]}, max_token = 8}}", "unknown", "mean max_tokens?"),
        ("never too long", "overlong.max_tokens", "overlong = {max_tokens = 16, cache_tokens = 4}",
         "answers of more than 12 tokens, and model.max_new_tokens is 8", "set 8, or raise"),
        ("always too long", "overlong.cache_tokens", "overlong = {max_tokens = 8, cache_tokens = 9}", "above", "lower"),
    ):  # fmt: skip
        yield Failure(cause, tables(f"{{one = {{{table}}}}}"), f"{where}.one.{key}", what, fix)
    name = tables(f'{{"My one" = {{{short}}}, another = {{{short}}}}}')
    yield Failure("a wrong name", name, f"{where}.My one", "small letters", 'write "my-one"')
    weightless = tables(f"{{one = {{{short}, weight = 0.0}}}}")
    yield Failure("weights of 0", weightless, where, "all rewards would be 0", "give one a weight")
    many = ", ".join(f"r{number} = {{{short}}}" for number in range(17))
    yield Failure("too many", tables(f"{{{many}}}"), where, "has 17 functions", "let one function")
    other = setting(environment__kind="math", environment__function="", environment__rewards=f"{{a = {{{short}}}}}")
    yield Failure("another kind", other, where, "is not used with kind", "set kind to")
    both_tables = f'{{short = {{{short}}}, right = {{function = "rewards:right"}}}}'
    lacking, right = rows({"prompt": "one"}), f"{where}.right.function"
    yield Failure("no answers", both(tables(both_tables), lacking), right, "needs the columns answer", "rename")


def _judges() -> Iterator[Failure[Home]]:
    where = "environment.rewards.one.judge"
    good: dict[str, object] = {
        "url": "http://judge:8000/v1",
        "model": "grader",
        "prompt": "{prompt} {completion}",
        "verdict": "is ([0-9]+)",
    }
    for cause, key, changes, what, fix in (
        ("no address", "url", {"url": "judge:8000"}, "it has another form", "docs/configuration.md"),
        ("the call in the address", "url", {"url": "http://j/v1/chat/completions"}, "names the call", '"http://j/v1"'),
        ("a secret in the address", "url", {"url": "http://me:hunter2@j/v1"}, "others would see", "ECHO_QUEUE_JUDGE_"),
        ("no answer", "prompt", {"prompt": "{prompt}"}, "would not see the answer", "add it"),
        ("a brace", "prompt", {"prompt": "{completion} {"}, "braces that are no names", "{{ and }}"),
        ("braces", "prompt", {"prompt": '{completion} {"score"}'}, "no name of a column", "{{ and }}"),
        ("no column", "prompt", {"prompt": "{completion} {wanted}"}, "needs the columns wanted", "rename the columns"),
        ("no pattern", "verdict", {"verdict": "("}, "no regular expression", "single quotes"),
        ("no group", "verdict", {"verdict": "[0-9]+"}, "has 0 groups", "the number alone in brackets"),
        ("too patient", "timeout_s", {"timeout_s": 30.0}, "is not below environment.timeout_s = 30", "lower it"),
    ):  # fmt: skip
        table = ", ".join(f"{name} = {value!r}" for name, value in {**good, **changes}.items())
        yield Failure(cause, tables(f"{{one = {{judge = {{{table}}}}}}}"), f"{where}.{key}", what, fix)
    table = ", ".join(f"{name} = {value!r}" for name, value in good.items())
    lost = both(tables(f"{{one = {{judge = {{{table}}}}}}}"), setting(judge_api_key_file="/none"))
    yield Failure("no file of its key", lost, "ECHO_QUEUE_JUDGE_API_KEY_FILE", "/none", "name a readable file")


def _returns() -> Iterator[Failure[Home]]:
    where, fix = "environment.function", "return a list with one number per completion"
    for cause, text, what in (
        ("one number", "return 1.0", "returns one number (line 2), and no list"),
        ("one number made of another", "return float(completions[0] == answer[0])", "returns one number (line 2)"),
        ("a generator", "yield 1.0", "is a generator (line 2 yields)"),
        ("a generator in brackets", "return (1.0 for _ in completions)", "returns a generator (line 2)"),
        ("a text", 'return "1"', "returns a text (line 2)"),
        ("nothing", "return", "returns nothing (line 2)"),
    ):
        spoil = written("rewards.py", f"def right(completions, answer, **columns):\n    {text}\n")
        yield Failure(cause, spoil, where, what, fix)
    text = 'def right(completions, **columns):\n    """What."""\n    raise NotImplementedError("write it")\n'
    yield Failure("nothing yet", written("rewards.py", text), where, "not written yet: all that", "write it")
    asks = written("rewards.py", "def right(completions, versions, **columns): return [0.0 for _ in completions]\n")
    taken = both(asks, rows({"prompt": "one", "versions": "1"}))
    yield Failure("a column that is taken", taken, "prompts.source", "versions, a name that the reward", "rename that")


def mixture(*changes: tuple[str, str]) -> Spoil:
    """Returns what writes a run of two components in place of [prompts], with these changes of its text."""
    text = CONFIG.replace('[prompts]\nset = "mine"\nsource = "prompts.jsonl"\n', MIXTURE)
    for old, new in changes:
        text = text.replace(old, new)
    return written("run.toml", text)


MIXTURE = """
[[mixture]]
name = "one"
source = "prompts.jsonl"

[[mixture]]
name = "two"
source = "prompts.jsonl"
weight = 2
max_prompt_tokens = 4
"""


def _mixture() -> Iterator[Failure[Home]]:
    name, second = "mixture[1].name", 'name = "two"'
    twice = mixture((second, 'name = "one"'))
    yield Failure("a component twice", twice, name, "the name of another component", "choose another name")
    dotted = mixture((second, 'name = "two.b"'))
    yield Failure("a component with a dot", dotted, name, "up to 32 small letters", 'write "two-b"')
    beside = both(mixture(), setting(prompts__source="prompts.jsonl"))
    yield Failure("prompts beside", beside, "prompts.source", "not used with [[mixture]]", "write it in a component")
    weight = mixture(("weight = 2", "weight = 0"))
    yield Failure("no weight", weight, "mixture[1].weight", "0 is not valid", "write more than 0")
    limit = "mixture[1].max_prompt_tokens"
    above = mixture(("tokens = 4", "tokens = 9"))
    yield Failure("above the model's limit", above, limit, "more than model.max_prompt_tokens, 8", "set 8 or less")
    below = mixture(("tokens = 4", "tokens = 2"))
    yield Failure("too long for a component", below, "prompts.jsonl:1", "3 tokens, the model takes 2", limit)
    nowhere = mixture((f'{second}\nsource = "prompts.jsonl"', f'{second}\nsource = "none.jsonl"'))
    yield Failure("no file of a component", nowhere, "none.jsonl", "cannot be read", "")
    sourceless = mixture(('source = "prompts.jsonl"\n', ""))
    yield Failure("no component's source", sourceless, "mixture", "no component names a source", "--set one")
    own = mixture((second, f'{second}\nenvironment = {{ kind = "function", function = "rewards:rigth" }}'))
    yield Failure("no such reward", own, "mixture[1].environment.function", "defines no rigth", "right")
    held = mixture(("[environment]", '[[evaluation]]\nname = "two"\nsource = "prompts.jsonl"\n[environment]'))
    yield Failure("held out and trained", held, "evaluation[0].name", "a set of component two", "held-out-two")


def _settings() -> Iterator[Failure[Home]]:
    yield Failure("no TOML", written("run.toml", "s = = 4\n"), "run.toml", "line 1", "fix that line")
    rate = "learner.learning_rate"
    yield Failure("another name", setting(learner__learning_rate="1"), rate, "unknown key", "called learner.lr")
    utf16 = CONFIG.encode("utf-16")
    yield Failure("UTF-16", lambda home: home.write_bytes("run.toml", utf16), "run.toml", "is not UTF-8", "as UTF-8")
    yield Failure("unknown key", setting(learner__lrr="1"), "learner.lrr", "unknown key", "did you mean lr?")
    large = written("run.toml", f"{CONFIG}[staleness]\nS = 4\n")
    yield Failure("capital letter", large, "staleness.S", "unknown key", "did you mean s?")
    yield Failure("wrong type", setting(staleness__s="few"), "staleness.s", "'few' is not", "write a whole number")
    yield Failure("out of range", setting(rollout__top_p="2"), "rollout.top_p", "2 is not valid", "write 1 or less")
    yield Failure("wrong word", setting(learner__schedule="cosinus"), "learner.schedule", "'cosinus'", 'mean "cosine"?')
    yield Failure("wrong name", setting(run__name="My run"), "run.name", "small letters", 'write "my-run"')
    yield Failure("too few", setting(learner__betas="[0.9]"), "learner.betas", "is too short", "write at least 2")
    yield Failure(
        "κ above S + 1", setting(staleness__kappa="9"), "staleness.kappa", "κ = 9 with S = 4", "set kappa to 5"
    )
    slow = setting(rollout__tokens_per_s="0.01")
    yield Failure("too slow to begin", slow, "queue.stall_deadline_s", "the first group may take 800 s", "set 1600")
    yield Failure("no directory", written("runs", ""), "run.dir", "cannot be written", "name a directory that you own")


def _services() -> Iterator[Failure[Home]]:
    url, store = "redis.url", "store.url"
    secret = setting(redis__url="redis://:hunter2@localhost/0")
    yield Failure("secret in the address", secret, url, "a user or a password in it", "docs/rights.md")
    yield Failure("no Redis", setting(redis__url="redis://127.0.0.1:9/0"), url, "cannot be reached", "start it")
    yield Failure("no scheme", setting(redis__url="localhost:6379"), url, "scheme", "redis://host:port/db")
    yield Failure("no program", setting(redis__program="/none"), "redis.program", "/none", "")
    keys = {"store_access_key": "key", "store_secret_key": "secret"}
    nobody = setting(store__url="http://127.0.0.1:9", **keys)
    yield Failure("no store", nobody, store, "127.0.0.1:9", "")
    bucket = "store.bucket"
    address = setting(store__url="http://127.0.0.1:9/mine", store__bucket="mine", **keys)
    yield Failure("the bucket in the address", address, store, "has the bucket's name in it", "leave it out")
    scheme = setting(store__url="s3://mine", store__bucket="mine", **keys)
    yield Failure("s3 as the address", scheme, store, "names a bucket, and no server", "write https://host")
    for cause, name in (("an address as the bucket", "s3://mine"), ("a prefix in the bucket", "mine/runs")):
        wrong = setting(store__bucket=name)
        yield Failure(cause, wrong, bucket, "more than the name of a bucket", 'write "mine" alone')
    half = setting(store__url="http://127.0.0.1:9", store_access_key="key")
    yield Failure("half a pair of keys", half, "ECHO_QUEUE_STORE_SECRET_KEY", "", "")
    lost = setting(redis__url="redis://127.0.0.1:9/0", redis_password_file="/none")
    yield Failure("no file of a secret", lost, "ECHO_QUEUE_REDIS_PASSWORD_FILE", "/none", "")
    port = "cannot be used here: Address already in use"
    yield Failure("a port that is taken", take_peer_port, "weights.peer_port", port, "name another one")


def _own_servers() -> Iterator[Failure[ServedHome]]:
    redis, store, keys = "redis.url", "store.url", "set ECHO_QUEUE_STORE_ACCESS_KEY and ECHO_QUEUE_STORE_SECRET_KEY"
    wrong = setting(store_secret_key="hunter2" * 4)
    yield Failure("a wrong key of the store", wrong, store, "our keys are refused for the bucket", keys)
    unknown = setting(store_access_key="NOBODY")
    yield Failure("an unknown key of the store", unknown, store, "our keys are refused for the bucket", keys)
    yield Failure("no bucket", setting(store__bucket="none"), "store.bucket", "there is no such bucket", "create it")
    for cause, source, what in (
        ("no object", f"s3://{BUCKET}/none.jsonl", "there is no such object"),
        ("no objects", f"s3://{BUCKET}/none/", "has no file of prompts"),
    ):
        yield Failure(cause, setting(prompts__source=source), source, what, "")
    old = "Redis 6.2.5 has no functions"
    yield Failure("an old Redis", ServedHome.take_old_redis, redis, old, "use Redis 7.0 or newer, or Valkey")
    for cause, name, value, what, fix in (
        ("a full Redis", "maxmemory", "1mb", "has no memory left", "raise maxmemory"),
        ("a Redis that evicts", "maxmemory-policy", "allkeys-lru", "would remove prompts", "maxmemory-policy noevic"),
        ("a Redis that forgets", "appendonly", "no", "a restart of this server forgets", "appendonly yes"),
    ):
        yield Failure(cause, configured(name, value), redis, what, fix)


GROUPS = {
    "model": _model,
    "prompts": _prompts,
    "reward": _reward,
    "rewards": _rewards,
    "judges": _judges,
    "returns": _returns,
    "mixture": _mixture,
    "settings": _settings,
    "services": _services,
}
EVERY = {f"{group}, {failure.cause}": failure for group, failures in GROUPS.items() for failure in failures()}
OWN_SERVERS = {failure.cause: failure for failure in _own_servers()}
