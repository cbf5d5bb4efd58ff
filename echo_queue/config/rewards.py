"""The tables `[environment.rewards.NAME]`: reward functions whose weighted sum is a sample's reward."""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from string import Formatter
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import Field

from echo_queue.config.keys import Section
from echo_queue.errors import Problem

if TYPE_CHECKING:
    from echo_queue.config.model import Environment

FUNCTION, TABLES = "environment.function", "environment.rewards"
KINDS = ("function", "overlong", "format", "judge")
"""The keys of a table of which it has exactly one."""
SINGLE = "reward"
"""The name of the only function, if it has no table."""
GIVEN = ("prompts", "completions", "completion_ids", "trainer_state")
"""The keywords that every reward function gets, besides one for each column."""
ON_REQUEST = ("token_counts", "finish_reasons", "versions")
"""The keywords that a reward function gets if it has a parameter of that name."""
REWARDS_MAX = 16
"""The most functions of a run: each sample's record holds what each of them gave."""


class Overlong(Section):
    """DAPO's soft punishment of answers that are nearly too long (arXiv 2503.14476, eq. 13)."""

    max_tokens: int = Field(gt=0)
    cache_tokens: int = Field(gt=0)


class Format(Section):
    """1 for an answer that a regular expression matches as a whole, else 0."""

    pattern: str


class Judge(Section):
    """A model behind an OpenAI-compatible address, which is asked for a verdict on each answer."""

    url: str = Field(pattern=r"^https?://.+$")
    model: str = Field(min_length=1)
    prompt: str = Field(min_length=1)
    verdict: str
    timeout_s: float = Field(default=20.0, gt=0)
    tries: int = Field(default=3, gt=0)
    concurrency: int = Field(default=16, gt=0)
    max_tokens: int = Field(default=512, gt=0)
    temperature: float = Field(default=0.0, ge=0)

    @property
    def asked(self) -> tuple[str, ...]:
        """The names in the prompt's braces; none if they are not closed."""
        with suppress(ValueError):
            return _names_in(self.prompt)
        return ()


class Reward(Section):
    """One function: `function` (`module:function`), or one of the ready-made ones. Its rewards count `weight` times."""

    function: str = ""
    overlong: Overlong | None = None
    format: Format | None = None
    judge: Judge | None = None
    weight: float = Field(default=1.0, allow_inf_nan=False)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in KINDS if getattr(self, kind))


def reward_contradictions(environment: "Environment", max_new_tokens: int) -> Iterator[Problem]:
    """Yields what is wrong with the tables. A function without a table is checked with the other environments.

    `max_new_tokens`: the limit of an answer.
    """
    if not environment.rewards or environment.kind != "function":
        return
    if environment.function:
        what = "names a function, and so do the tables environment.rewards"
        yield Problem(FUNCTION, what, 'write it as a table of its own: [environment.rewards.NAME] with function = "…"')
    if len(environment.rewards) > REWARDS_MAX:
        what = f"has {len(environment.rewards)} functions, and a record has room for {REWARDS_MAX}"
        yield Problem(TABLES, what, "let one function add some of them up")
    if not any(one.weight for one in environment.rewards.values()):
        yield Problem(TABLES, "gives every function the weight 0: all rewards would be 0", "give one a weight")
    for name, reward in environment.rewards.items():
        yield from _of_table(f"{TABLES}.{name}", reward, max_new_tokens)
        if reward.judge:
            yield from _of_judge(f"{TABLES}.{name}.judge", reward.judge, environment.timeout_s)


def _of_table(where: str, reward: Reward, max_new_tokens: int) -> Iterator[Problem]:
    if len(reward.kinds) != 1:
        has = " and ".join(reward.kinds) or "no function"
        yield Problem(where, f"has {has}; a reward has exactly one of {', '.join(KINDS)}", "write one table for each")
    if reward.function and ":" not in reward.function:
        ready = f", and {reward.function} = {{…}} is the ready-made one" if reward.function in KINDS else ""
        what = f'is "{reward.function}", in which no colon divides the module from the name'
        yield Problem(f"{where}.function", what, f'write "module:function"{ready}')
    if reward.format:
        yield from _of_pattern(f"{where}.format.pattern", reward.format.pattern)
    if reward.overlong:
        yield from _of_lengths(f"{where}.overlong", reward.overlong, max_new_tokens)


def _of_pattern(where: str, pattern: str, groups: int = 0) -> Iterator[Problem]:
    """`groups`: the number of groups that the pattern must have; 0: any."""
    try:
        found = re.compile(pattern).groups
    except re.error as error:
        what = f"{pattern!r} is no regular expression: {error}"
        yield Problem(where, what, "write one as Python's re has them, in single quotes")
        return
    if groups and found != groups:
        what = f"{pattern!r} has {found} groups, and the verdict is what the only one matches"
        yield Problem(
            where, what, "put the number alone in brackets, as in 'Score: ([0-9.]+)', and (?:…) around others"
        )


def _of_judge(where: str, judge: Judge, timeout_s: float) -> Iterator[Problem]:
    parts = urlsplit(judge.url)
    if "@" in parts.netloc or parts.query:
        what = "has a user, a password or a query in it, which others would see"
        yield Problem(f"{where}.url", what, "remove it: ECHO_QUEUE_JUDGE_API_KEY has the server's key")
    elif parts.path.rstrip("/").endswith("/chat/completions"):
        plain = judge.url.rstrip("/").removesuffix("/chat/completions")
        yield Problem(f"{where}.url", "names the call, which is added to it", f'write "{plain}"')
    yield from _of_pattern(f"{where}.verdict", judge.verdict, groups=1)
    try:
        asked = _names_in(judge.prompt)
    except ValueError as error:
        yield Problem(f"{where}.prompt", f"has braces that are no names: {error}", "write {{ and }} for plain braces")
    else:
        if odd := [name for name in asked if not name.isidentifier()]:
            what = f"has {{{odd[0]}}}, which is no name of a column"
            yield Problem(f"{where}.prompt", what, "write {{ and }} for plain braces")
        elif "completion" not in asked:
            yield Problem(f"{where}.prompt", "has no {completion}: the judge would not see the answer", "add it")
    if judge.timeout_s >= timeout_s:
        what = f"is not below environment.timeout_s = {timeout_s:g}, which would end the call without the judge's name"
        yield Problem(f"{where}.timeout_s", what, "lower it, or raise environment.timeout_s")


def _names_in(template: str) -> tuple[str, ...]:
    """Returns the names in a template's braces. Raises `ValueError` for braces that are not closed."""
    return tuple(dict.fromkeys(name for _, name, _, _ in Formatter().parse(template) if name is not None))


def _of_lengths(where: str, overlong: Overlong, max_new_tokens: int) -> Iterator[Problem]:
    free = overlong.max_tokens - overlong.cache_tokens
    if free < 0:
        yield Problem(f"{where}.cache_tokens", "is above max_tokens: every answer would be punished", "lower it")
    elif free >= max_new_tokens:
        what = f"punishes answers of more than {free} tokens, and model.max_new_tokens is {max_new_tokens}"
        yield Problem(f"{where}.max_tokens", what, f"set {max_new_tokens}, or raise model.max_new_tokens")


def weighted(parts: Mapping[str, float], rewards: Mapping[str, Reward]) -> float:
    """Returns the reward of a sample: the weighted sum of what each function gave it."""
    return math.fsum(rewards[name].weight * part for name, part in parts.items())


def named_code(environment: "Environment") -> dict[str, str]:
    """Returns the user's code that an environment runs: the key that names it → `module:name`."""
    if environment.kind == "function" and environment.rewards:
        named = {f"{TABLES}.{name}.function": one.function for name, one in environment.rewards.items()}
        return {where: reference for where, reference in named.items() if reference}
    return {FUNCTION: environment.function}
