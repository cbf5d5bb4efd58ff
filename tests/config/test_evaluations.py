"""A run may have several held-out sets. Each is checked as the sets and the environment of the run are, and told by its
number: `evaluation[1].samples` is a key of the second."""

from pathlib import Path

import pytest

from echo_queue.config import Config, Environment, loading, toml_text
from tests.config.test_model import BASE, problems

TRAIN = BASE + '[prompts]\nset = "train"\nsource = "train.jsonl"\n'
FIRST = '[[evaluation]]\nname = "first"\nsource = "held.jsonl"\n'
SECOND = '[[evaluation]]\nname = "second"\nsource = "held.jsonl"\n'


def loaded(directory: Path, text: str, environ: dict[str, str] | None = None) -> Config:
    path = directory / "run.toml"
    path.write_text(text, encoding="utf-8")
    return loading.load(path, environ or {})


def test_a_set_is_scored_by_its_evaluations_environment_and_else_by_the_runs(tmp_path: Path) -> None:
    math = '[evaluation.environment]\nkind = "math"\n'
    config = loaded(tmp_path, TRAIN + FIRST + SECOND + math)
    first, second = config.evaluation
    assert (config.evaluation_of("first"), config.evaluation_of("second")) == (first, second)
    assert config.evaluation_of("train") is None
    assert config.environment_of("second") == Environment(kind="math")
    assert config.environment_of("first") == config.environment_of("train") == config.environment == Environment()


def test_an_evaluation_without_a_limit_has_the_models(tmp_path: Path) -> None:
    limit = FIRST + "samples = 64\n" + SECOND + "max_new_tokens = 100\n"
    config = loaded(tmp_path, TRAIN + limit)
    assert [evaluation.limit(config.model) for evaluation in config.evaluation] == [1024, 100]
    assert config.group_max_tokens == 64 * 1024


@pytest.mark.parametrize(
    ("text", "where", "told"),
    [
        (FIRST + FIRST, "evaluation[1].name", "choose another name"),
        (FIRST + SECOND.replace("second", "train"), "evaluation[1].name", 'such as "held-out-train"'),
        (FIRST + 'environmnet = "x"\n', "evaluation[0].environmnet", "did you mean environment?"),
        (FIRST + SECOND + "sampels = 3\n", "evaluation[1].sampels", "did you mean samples?"),
        (FIRST + 'dataset_name = "x"\n', "evaluation[0].dataset_name", "did you mean source?"),
        (FIRST + "samples = 0\n", "evaluation[0].samples", "write more than 0"),
        (FIRST + "samples = 1.5\n", "evaluation[0].samples", "write a whole number"),
        (FIRST + "temperature = -1\n", "evaluation[0].temperature", "write 0 or more"),
        (FIRST + "max_new_tokens = 1025\n", "evaluation[0].max_new_tokens", "set 1024 or less; 0 stands for 1024"),
        (FIRST + "samples = 9999\n", "evaluation[0].samples", "or fewer samples"),
        (SECOND.replace('name = "second"', ""), "evaluation[0].name", "add it"),
        (SECOND.replace('"second"', '"No name"'), "evaluation[0].name", 'write "no-name"'),
        (FIRST.replace("[[evaluation]]", "[evaluation]"), "evaluation", "write [[evaluation]]: there may be several"),
        ("evaluation = 3\n", "evaluation", "write a list"),
    ],
)
def test_what_is_wrong_with_an_evaluation_is_told_with_its_number(
    tmp_path: Path, text: str, where: str, told: str
) -> None:
    text = TRAIN + text if text.startswith("[") else text + TRAIN
    (found,) = problems(tmp_path, text).values()
    assert (found.where, told in found.fix) == (where, True)


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ('kind = "interactive"', "function"),
        ('kind = "math"\nfunction = "a:b"', "function"),
        ('kind = "math"\noptions = { opponent = "tight" }', "options"),
        ("reward_min = 1\nreward_max = 0", "reward_max"),
        ('kind = "maths"', "kind"),
        ("timeout = 3", "timeout"),
    ],
)
def test_an_evaluations_environment_is_checked_as_the_runs_is(tmp_path: Path, environment: str, key: str) -> None:
    of_run = problems(tmp_path, f"{TRAIN}[environment]\n{environment}\n")
    second = f'[[evaluation]]\nname = "second"\n[evaluation.environment]\n{environment}\n'
    (found,) = problems(tmp_path, TRAIN + FIRST + second).values()
    assert found.where == f"evaluation[1].environment.{key}"
    assert (found.what, found.fix) == (of_run[f"environment.{key}"].what, of_run[f"environment.{key}"].fix)


def test_what_is_wrong_with_the_runs_environment_is_told_once(tmp_path: Path) -> None:
    wrong = '[environment]\nkind = "interactive"\nreward_max = -1e7\n'
    assert problems(tmp_path, TRAIN + wrong + FIRST + SECOND).keys() == {
        "environment.function",
        "environment.reward_max",
    }


def test_the_rewards_of_an_evaluation_are_checked_as_the_runs_are(tmp_path: Path) -> None:
    rewards = '[evaluation.environment]\nkind = "function"\n[evaluation.environment.rewards.short]\nweight = 1\n'
    assert problems(tmp_path, TRAIN + FIRST + rewards).keys() == {"evaluation[0].environment.rewards.short"}


def test_every_evaluation_is_checked_although_one_is_no_evaluation_at_all(tmp_path: Path) -> None:
    text = TRAIN + "[[evaluation]]\nsource = 3\n" + SECOND + "max_new_tokens = 9999\n" + '[staleness]\ns = "x"\n'
    assert problems(tmp_path, text).keys() == {
        "evaluation[0].name",
        "evaluation[0].source",
        "evaluation[1].max_new_tokens",
        "staleness.s",
    }


def test_a_server_samples_an_evaluation_greedily_or_at_a_temperature_that_it_takes(tmp_path: Path) -> None:
    http = '[rollout]\nengine = "http"\nworkers = 1\nhttp = { url = "http://here:8000", weights_dir = "w" }\n'
    assert not problems(tmp_path, TRAIN + http + FIRST + "temperature = 0\n")
    assert list(problems(tmp_path, TRAIN + http + FIRST + "temperature = 0.001\n")) == ["evaluation[0].temperature"]


def test_variables_and_flags_name_an_evaluation_by_its_number(tmp_path: Path) -> None:
    environ = {
        "ECHO_QUEUE_EVALUATION__1__SAMPLES": "4",
        "ECHO_QUEUE_EVALUATION__1__ENVIRONMENT__KIND": "math",
        "ECHO_QUEUE_EVALUATION__0__OPTIONS": '{"size": 3}',
    }
    config = loaded(tmp_path, TRAIN + FIRST + SECOND, environ)
    first, second = config.evaluation
    assert (first.samples, first.options, first.environment) == (1, {"size": 3}, None)
    assert (second.samples, second.environment) == (4, Environment(kind="math"))


@pytest.mark.parametrize("variable", ["EVALUATION__SAMPLES", "EVALUATION__2__SAMPLES", "EVALUATION__FIRST__SAMPLES"])
def test_a_variable_that_names_no_evaluation_of_the_file_is_told_how_to(tmp_path: Path, variable: str) -> None:
    (found,) = problems(tmp_path, TRAIN + FIRST + SECOND, {f"ECHO_QUEUE_{variable}": "4"}).values()
    assert found.where == f"ECHO_QUEUE_{variable}"
    assert "it has 2" in found.what
    assert found.fix == "write ECHO_QUEUE_EVALUATION__0__SAMPLES for the first one"


def test_a_variable_makes_no_evaluation_that_the_file_has_not(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, TRAIN, {"ECHO_QUEUE_EVALUATION__0__NAME": "x"}).values()
    assert (found.where, found.fix) == ("evaluation", "write [[evaluation]]: there may be several")


def test_evaluations_are_written_and_read_back(tmp_path: Path) -> None:
    math = '[evaluation.environment]\nkind = "math"\n'
    config = loaded(tmp_path, TRAIN + FIRST + "options = { size = 3 }\n" + SECOND + math)
    written = toml_text.written(config.model_dump(mode="json", exclude_defaults=True))
    assert loaded(tmp_path, written) == config
