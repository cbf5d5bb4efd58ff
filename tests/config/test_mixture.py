"""A run may have several components. Each is checked as [prompts] and [environment] are, and told by its number."""

from pathlib import Path

import pytest

from echo_queue.config import Config, Environment, toml_text
from echo_queue.config.checks import COMPONENTS_MAX, largest_group_bytes
from tests.config.test_evaluations import loaded
from tests.config.test_model import BASE, problems

MATH = '[[mixture]]\nname = "math"\nweight = 6\nsource = "math.jsonl"\n'
WORDS = '[[mixture]]\nname = "words"\nsource = "words.jsonl"\n'
HELD = '[[evaluation]]\nname = "{}"\nsource = "held.jsonl"\n'
OWN = '[mixture.environment]\nkind = "math"\n'


def test_a_set_belongs_to_the_component_that_its_name_begins_with(tmp_path: Path) -> None:
    config = loaded(tmp_path, BASE + MATH + OWN + "[[mixture]]\nname = 'words'\nmax_new_tokens = 100\n")
    math, words = config.mixture
    assert [config.component_of(name) for name in ("math", "math.more", "words.2.b")] == [math, math, words]
    assert [config.component_of(name) for name in ("maths", "more.math", "wordsmith.2")] == [None] * 3
    assert [config.environment_of(name) for name in ("math.2", "words")] == [Environment(kind="math"), Environment()]
    assert [config.new_tokens_of(name) for name in ("math.2", "words.2")] == [1024, 100]
    assert [config.source_of(name) for name in ("math.2", "words")] == ["math.jsonl", ""]
    assert config.mixture_weights == "math:6 words:1"


def test_a_run_without_a_mixture_trains_in_its_own_environment_and_one_with_it_in_those_of_its_components(
    tmp_path: Path,
) -> None:
    function = '[environment]\nkind = "function"\nfunction = "a:b"\n'
    own, math = Environment(kind="function", function="a:b"), Environment(kind="math")
    assert loaded(tmp_path, BASE + function).trained_environments == (own,)
    assert loaded(tmp_path, BASE + function + MATH + OWN + WORDS).trained_environments == (math, own)
    both = MATH + OWN + WORDS + OWN
    assert loaded(tmp_path, BASE + both).trained_environments == (math,)


@pytest.mark.parametrize(
    ("text", "where", "told"),
    [
        (MATH + MATH, "mixture[1].name", "choose another name"),
        (MATH + HELD.format("math"), "evaluation[0].name", 'such as "held-out-math"'),
        (MATH + HELD.format("math.held"), "evaluation[0].name", 'such as "held-out-math"'),
        (MATH + '[prompts]\nsource = "a.jsonl"\n', "prompts.source", "write it in a component"),
        (MATH + "[prompts]\nepochs = 2\n", "prompts.epochs", "write it in a component"),
        (MATH + "max_new_tokens = 1025\n", "mixture[0].max_new_tokens", "set 1024 or less"),
        (
            MATH + WORDS + "max_prompt_tokens = 513\n",
            "mixture[1].max_prompt_tokens",
            "or raise model.max_prompt_tokens",
        ),
        (MATH + "weigth = 3\n", "mixture[0].weigth", "did you mean weight?"),
        (MATH + 'dataset_name = "x"\n', "mixture[0].dataset_name", "did you mean source?"),
        (MATH.replace("6", "0"), "mixture[0].weight", "write more than 0"),
        (MATH.replace('"math"', '"math.more"'), "mixture[0].name", 'write "math-more"'),
        (MATH.replace('"math"', '"A math"'), "mixture[0].name", 'write "a-math"'),
        (WORDS.replace('name = "words"\n', ""), "mixture[0].name", "add it"),
        (MATH.replace("[[mixture]]", "[mixture]"), "mixture", "write [[mixture]]: there may be several"),
        (MATH + OWN + '[environment]\nkind = "math"\n', "environment", "remove it"),
        (
            MATH + '[environment]\nreward_min = -1\n[learner]\nadvantage = "max"\n',
            "learner.advantage",
            "reward_min to 0",
        ),
    ],
)
def test_what_is_wrong_with_a_component_is_told_with_its_number(
    tmp_path: Path, text: str, where: str, told: str
) -> None:
    (found,) = problems(tmp_path, BASE + text).values()
    assert (found.where, told in found.fix) == (where, True), found


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ('kind = "interactive"', "function"),
        ('kind = "math"\nfunction = "a:b"', "function"),
        ("reward_min = 1\nreward_max = 0", "reward_max"),
        ('kind = "maths"', "kind"),
        ('kind = "function"\n[mixture.environment.rewards.short]\nweight = 1', "rewards.short"),
    ],
)
def test_a_components_environment_is_checked_as_the_runs_is(tmp_path: Path, environment: str, key: str) -> None:
    of_run = problems(tmp_path, f"{BASE}[environment]\n{environment.replace('mixture.', '')}\n")
    (found,) = problems(tmp_path, BASE + MATH + WORDS + f"[mixture.environment]\n{environment}\n").values()
    assert found.where == f"mixture[1].environment.{key}"
    assert (found.what, found.fix) == (of_run[f"environment.{key}"].what, of_run[f"environment.{key}"].fix)


def test_the_advantage_that_divides_by_the_mean_is_refused_for_the_negative_rewards_of_one_component(
    tmp_path: Path,
) -> None:
    one, maximum = f"{OWN}reward_min = {{}}\n", '[learner]\nadvantage = "max"\n'
    assert not problems(tmp_path, BASE + MATH + one.format(0) + WORDS + one.format(0) + maximum)
    assert "learner.advantage" in problems(tmp_path, BASE + MATH + one.format(0) + WORDS + one.format(-1) + maximum)


def test_what_is_wrong_with_the_runs_environment_is_told_once(tmp_path: Path) -> None:
    wrong = '[environment]\nkind = "interactive"\nreward_max = -1e7\n'
    assert problems(tmp_path, BASE + MATH + WORDS + wrong).keys() == {"environment.function", "environment.reward_max"}


def test_every_component_is_checked_although_one_is_none_at_all(tmp_path: Path) -> None:
    text = BASE + "[[mixture]]\nsource = 3\n" + WORDS + "max_new_tokens = 9999\n" + '[staleness]\ns = "x"\n'
    assert problems(tmp_path, text).keys() == {
        "mixture[0].name",
        "mixture[0].source",
        "mixture[1].max_new_tokens",
        "staleness.s",
    }


def test_a_record_has_room_for_the_figures_of_all_components(tmp_path: Path) -> None:
    def named(count: int) -> str:
        return BASE + "".join(f'[[mixture]]\nname = "part-{number}"\n' for number in range(count))

    assert not problems(tmp_path, named(COMPONENTS_MAX))
    assert problems(tmp_path, named(COMPONENTS_MAX + 1)).keys() == {"mixture"}


def test_a_group_of_every_component_finds_room(tmp_path: Path) -> None:
    """The component with the most to record says how many bytes that is, not the run's environment that it has not."""

    def needs(text: str) -> int:
        return largest_group_bytes(loaded(tmp_path, BASE + text))

    turns = '[mixture.environment]\nkind = "interactive"\nfunction = "a:B"\nmax_turns = 100\n'
    assert needs(MATH + WORDS) == needs("")
    assert needs(MATH + WORDS + turns) > needs(MATH + WORDS)
    assert needs(MATH + "max_new_tokens = 100\n") < needs("")
    assert needs(MATH + "max_new_tokens = 100\n" + WORDS) == needs("")
    small = "[queue]\ngroup_max_bytes = 40_000\n"
    assert "queue.group_max_bytes" in problems(tmp_path, BASE + small + MATH + WORDS + turns)


def test_variables_and_flags_name_a_component_by_its_number(tmp_path: Path) -> None:
    environ = {"ECHO_QUEUE_MIXTURE__1__WEIGHT": "4", "ECHO_QUEUE_MIXTURE__1__ENVIRONMENT__KIND": "math"}
    config = loaded(tmp_path, BASE + MATH + WORDS, environ)
    assert config.mixture_weights == "math:6 words:4"
    assert config.environment_of("words") == Environment(kind="math")
    (found,) = problems(tmp_path, BASE + MATH + WORDS, {"ECHO_QUEUE_MIXTURE__WEIGHT": "4"}).values()
    assert found.fix == "write ECHO_QUEUE_MIXTURE__0__WEIGHT for the first one"


def test_components_are_written_and_read_back(tmp_path: Path) -> None:
    config: Config = loaded(tmp_path, BASE + MATH + "options = { size = 3 }\n" + WORDS + OWN)
    written = toml_text.written(config.model_dump(mode="json", exclude_defaults=True))
    assert loaded(tmp_path, written) == config
