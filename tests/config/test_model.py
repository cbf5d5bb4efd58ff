"""Each promise is what the person sees: the key's path and what to do."""

from pathlib import Path

import pytest

from echo_queue.cli.run.config import reference
from echo_queue.config import Config, loading
from echo_queue.config.explanations import NAMES_ELSEWHERE
from echo_queue.errors import ConfigError, Problem

BASE = '[run]\nname = "t"\ndir = "runs/t"\n'


def problems(directory: Path, text: str, environ: dict[str, str] | None = None) -> dict[str, Problem]:
    path = directory / "run.toml"
    path.write_text(text, encoding="utf-8")
    return {problem.where: problem for problem in loading.examine(path, environ or {})[1]}


def test_a_name_and_a_directory_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(BASE, encoding="utf-8")
    assert loading.load(path, {}).staleness.s == 4


@pytest.mark.parametrize("key", NAMES_ELSEWHERE.values())
def test_a_name_of_another_library_leads_to_a_key_that_there_is(key: str) -> None:
    *sections, name = key.split(".")
    inside = Config.model_validate({"run": {"name": "t", "dir": "runs/t"}})
    for section in sections:
        inside = getattr(inside, section)
    assert name in type(inside).model_fields


def test_everything_wrong_is_reported_at_once(tmp_path: Path) -> None:
    text = (
        BASE
        + "[staleness]\ns = 0\nkappa = 4\n[rollout]\ngroup_size = 1\nworker = 2\n[lerner]\nlr = 1\n"
        + '[model]\ndtype = "int8"\n'
    )
    found = problems(tmp_path, text)
    assert found.keys() == {"staleness.kappa", "rollout.group_size", "rollout.worker", "lerner", "model.dtype"}
    assert found["rollout.worker"].fix == "did you mean workers?"
    assert found["lerner"].fix == "did you mean learner?"
    assert "κ = 4 with S = 0" in found["staleness.kappa"].what


@pytest.mark.parametrize("old", ["true", "false"])
def test_the_switch_that_compile_was_leads_to_the_choices_that_there_are(old: str, tmp_path: Path) -> None:
    (found,) = problems(tmp_path, BASE + f"[learner]\ncompile = {old}\n").values()
    assert (found.where, found.fix) == ("learner.compile", 'write "auto" or "none" or "elementwise" or "layers"')


@pytest.mark.parametrize("name", ['name = "My run"', "name = 3", ""])
def test_a_run_without_a_right_name_hides_nothing_else_that_is_wrong(tmp_path: Path, name: str) -> None:
    text = f'[run]\n{name}\ndir = "out"\n[staleness]\ns = 0\nkappa = 4\n'
    assert problems(tmp_path, text).keys() == {"run.name", "staleness.kappa"}
    assert problems(tmp_path, "run = 3\n[staleness]\ns = 0\nkappa = 4\n").keys() == {"run", "staleness.kappa"}


@pytest.mark.parametrize("s", [0, 1, 4])
def test_kappa_may_be_one_more_than_s_and_no_more(tmp_path: Path, s: int) -> None:
    assert not problems(tmp_path, BASE + f"[staleness]\ns = {s}\nkappa = {s + 1}\n")
    assert "staleness.kappa" in problems(tmp_path, BASE + f"[staleness]\ns = {s}\nkappa = {s + 2}\n")


def test_a_nucleus_that_clipping_would_cut_off_is_refused(tmp_path: Path) -> None:
    assert not problems(tmp_path, BASE + "[rollout]\ntop_p = 0.9\n")
    assert "rollout.top_p" in problems(tmp_path, BASE + "[rollout]\ntop_p = 0.8\n")


def test_a_size_cap_below_what_a_group_may_take_is_refused(tmp_path: Path) -> None:
    cap, short = BASE + "[queue]\ngroup_max_bytes = 65536\n", "[model]\nmax_prompt_tokens = 256\nmax_new_tokens = 64\n"
    assert not problems(tmp_path, cap + short)
    many = problems(tmp_path, cap + short + "[rollout]\ngroup_size = 60\n")
    assert "set 131072" in many["queue.group_max_bytes"].fix
    long = problems(tmp_path, cap + "[model]\nmax_new_tokens = 600\n")
    assert "queue.group_max_bytes" in long


HTTP = '[rollout]\nengine = "http"\nworkers = 1\nhttp = { url = "http://here:8000", weights_dir = "w" }\n'


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        ('url = "http://here:8000", ', "", "rollout.http.url"),
        ("http://here:8000", "here:8000", "rollout.http.url"),
        ("http://here:8000", "http://here:80x", "rollout.http.url"),
        ("http://here:8000", "http://:8000", "rollout.http.url"),
        (', weights_dir = "w"', "", "rollout.http.weights_dir"),
        ("workers = 1", "workers = 2", "rollout.workers"),
        ("workers = 1", "workers = 1\nmetrics_port = 9000", "rollout.metrics_port"),
        ("workers = 1", "workers = 1\ntemperature = 0.001", "rollout.temperature"),
    ],
)
def test_an_engine_of_a_server_gets_what_it_needs_and_nothing_else(
    tmp_path: Path, before: str, after: str, where: str
) -> None:
    assert not problems(tmp_path, BASE + HTTP)
    assert list(problems(tmp_path, BASE + HTTP.replace(before, after))) == [where]


def test_a_server_is_named_for_the_engine_that_uses_it(tmp_path: Path) -> None:
    other = HTTP.replace('engine = "http"', 'engine = "vllm"')
    assert problems(tmp_path, BASE + other).keys() == {"rollout.http.url", "rollout.http.weights_dir"}


def test_metrics_of_vllm_are_refused_where_there_is_no_vllm(tmp_path: Path) -> None:
    text = BASE + '[rollout]\nmetrics_port = 9000\nengine = "{}"\n'
    assert not problems(tmp_path, text.format("vllm"))
    assert problems(tmp_path, text.format("transformers")).keys() == {"rollout.metrics_port"}


@pytest.mark.parametrize("key", ['file = "notice"', 'endpoint = "http://127.0.0.1:1"', "acknowledge = true"])
def test_what_a_watch_for_notices_does_not_use_is_refused(tmp_path: Path, key: str) -> None:
    preemption = BASE + "[rollout.preemption]\n"
    assert f"rollout.preemption.{key.split(maxsplit=1)[0]}" in problems(
        tmp_path, preemption + f'watch = "signal"\n{key}\n'
    )
    assert "rollout.preemption.file" in problems(tmp_path, preemption + 'watch = "file"\n')
    assert "rollout.preemption.endpoint" in problems(tmp_path, preemption + 'watch = "aws"\nendpoint = "here"\n')


def test_a_shared_folder_is_named_for_the_transport_that_uses_it(tmp_path: Path) -> None:
    folder = BASE + '[weights]\nfolder = "/dev/shm/parts"\n'
    assert problems(tmp_path, folder + 'transport = "folder"\n') == {}
    assert "weights.folder" in problems(tmp_path, folder)
    assert "weights.transport" in problems(tmp_path, BASE + '[weights]\ntransport = "pigeons"\n')


def test_rewards_lie_between_two_bounds(tmp_path: Path) -> None:
    turned = BASE + "[environment]\nreward_min = 1.0\nreward_max = 0.0\n"
    assert "environment.reward_max" in problems(tmp_path, turned)


@pytest.mark.parametrize(
    ("section", "where"),
    [
        ('kind = "interactive"', "environment.function"),
        ('kind = "verifiers"\nfunction = "no_colon"', "environment.function"),
        ('kind = "math"\nfunction = "a:b"', "environment.function"),
        ('kind = "math"\noptions = { opponent = "tight" }', "environment.options"),
    ],
)
def test_an_environment_gets_what_it_needs_and_nothing_else(tmp_path: Path, section: str, where: str) -> None:
    assert list(problems(tmp_path, BASE + f"[environment]\n{section}\n")) == [where]


def test_environments_that_answer_are_named_in_full(tmp_path: Path) -> None:
    for section in (
        'kind = "interactive"\nfunction = "a:B"\noptions = { highest = 9 }',
        'kind = "verifiers"\nfunction = "a:load_environment"\noptions = { max_turns = 3 }',
        'kind = "interactive"\nfunction = "a:B"\n[prompts]\nsource = "a:rows"',
    ):
        assert not problems(tmp_path, BASE + f"[environment]\n{section}\n")


@pytest.mark.parametrize(
    "schedule",
    [
        'schedule = "linear"',
        "schedule_updates = 10",
        'schedule = "cosine"\nschedule_updates = 10\nwarmup_updates = 10',
        'schedule = "cosine"\nmax_updates = 9\nwarmup_updates = 10',
    ],
)
def test_a_schedule_of_the_learning_rate_has_an_end(tmp_path: Path, schedule: str) -> None:
    assert list(problems(tmp_path, BASE + f"[learner]\n{schedule}\n")) == ["learner.schedule_updates"]


def test_a_schedule_ends_with_the_run_or_by_its_own_number(tmp_path: Path) -> None:
    assert not problems(tmp_path, BASE + '[learner]\nschedule = "linear"\nmax_updates = 100\n')
    assert not problems(tmp_path, BASE + '[learner]\nschedule = "cosine"\nschedule_updates = 100\nwarmup_updates = 9\n')


@pytest.mark.parametrize(
    ("sections", "refused"),
    [
        ('[selection]\nrefill = true\n[learner]\nzero_variance = "keep"', "selection.refill"),
        ("[selection]\npairs_kept = 0.5\n[rollout]\ngroup_size = 7", "rollout.group_size"),
        ("[selection]\nshuffle_rounds = 2\n[rollout]\ngroup_size = 7", "rollout.group_size"),
        ("[selection]\nreuse_groups = 1\n[staleness]\ns = 0", "selection.reuse_groups"),
        ('[selection]\ncurriculum = "dopr"', "learner.batch_groups"),
        ("[selection]\nreward_success = 0.0", "selection.reward_success"),
    ],
)
def test_a_selection_that_cannot_be_is_refused(tmp_path: Path, sections: str, refused: str) -> None:
    assert list(problems(tmp_path, BASE + sections)) == [refused]


@pytest.mark.parametrize(
    ("lora", "where"),
    [
        ("rank = -1", "rank"),
        ("rank = 8\ntarget_modules = []", "target_modules"),
        ('rank = 8\ntarget_modules = ["layers.0.q_proj"]', "target_modules"),
        ('target_modules = ["q_proj"]', "target_modules"),
        ("alpha = 16", "alpha"),
    ],
)
def test_adapters_are_asked_for_whole(tmp_path: Path, lora: str, where: str) -> None:
    assert list(problems(tmp_path, BASE + f"[model.lora]\n{lora}\n")) == [f"model.lora.{where}"]
    assert not problems(tmp_path, BASE + '[model.lora]\nrank = 8\nalpha = 16\ntarget_modules = ["q_proj"]\n')


def test_a_router_is_frozen_with_the_base_model_of_adapters_in_any_case(tmp_path: Path) -> None:
    frozen = "[learner]\nfreeze_router = true\n"
    assert not problems(tmp_path, BASE + frozen)
    assert list(problems(tmp_path, BASE + frozen + "[model.lora]\nrank = 8\n")) == ["learner.freeze_router"]


def test_a_union_is_one_problem(tmp_path: Path) -> None:
    found = problems(tmp_path, BASE + '[staleness]\nkappa = "often"\n')
    assert list(found) == ["staleness.kappa"]
    assert "'often' is not valid" in found["staleness.kappa"].what


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path, '[run]\nname = "t"\n').keys() == {"run.dir"}


def test_a_file_that_is_not_toml_names_its_line(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, BASE + "s = = 4\n").values()
    assert "line 4" in problem.what


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        loading.load(tmp_path / "none.toml")


def test_variables_override_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(BASE + "[staleness]\ns = 1\n", encoding="utf-8")
    environ = {
        "ECHO_QUEUE_STALENESS__S": "2",
        "ECHO_QUEUE_RUN__NAME": "other",
        "ECHO_QUEUE_MODEL__INIT__LAYERS": "3",
        "ECHO_QUEUE_CONFIG": "elsewhere",
    }
    found = loading.load(path, environ)
    assert (found.staleness.s, found.run.name, found.model.init.layers) == (2, "other", 3)


def test_a_variable_may_hold_a_table_or_a_list_as_toml_or_as_json(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(BASE, encoding="utf-8")
    for options in ("{size = 3, names = ['a']}", '{"size": 3, "names": ["a"]}'):
        config = loading.load(path, {"ECHO_QUEUE_PROMPTS__OPTIONS": options, "ECHO_QUEUE_LEARNER__BETAS": "[0.8, 0.9]"})
        assert config.prompts.options == {"size": 3, "names": ["a"]}
        assert config.learner.betas == (0.8, 0.9)


@pytest.mark.parametrize(
    ("key", "url"),
    [
        ("redis.url", "redis://:hunter2@here/0"),
        ("redis.url", "redis://here?password=hunter2"),
        ("store.url", "https://me:hunter2@here"),
        ("rollout.http.url", "http://me:hunter2@here:8000"),
        ("rollout.preemption.endpoint", "http://me:hunter2@here"),
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_shown(tmp_path: Path, key: str, url: str) -> None:
    section, _, name = key.rpartition(".")
    found = problems(tmp_path, f'{BASE}[{section}]\n{name} = "{url}"\n')
    assert found.keys() == {key}
    assert "hunter2" not in str(found[key])


def test_a_variable_without_a_place_is_reported(tmp_path: Path) -> None:
    found = problems(tmp_path, BASE, {"ECHO_QUEUE_STALENES__S": "2", "ECHO_QUEUE_RUN__NAME__X": "2"})
    assert found.keys() == {"stalenes", "ECHO_QUEUE_RUN__NAME__X"}


def test_the_written_reference_is_up_to_date() -> None:
    written = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert written.read_text(encoding="utf-8") == reference(), "run `make docs`"


def test_every_key_says_what_it_means() -> None:
    unexplained = [line for line in reference().splitlines() if line.startswith("| `") and line.endswith("|  |")]
    assert not unexplained
