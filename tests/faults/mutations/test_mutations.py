"""The suite notices when a rule of the product is broken: the list is true to the code and to the tests."""

import re

import pytest

from tests.faults.mutations import apply
from tests.faults.mutations.apply import ROOT, main, noticed_by
from tests.faults.mutations.table import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_a_mutation_changes_todays_code_in_one_place_and_names_tests_that_exist(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text()
    assert mutation.apply(text) != text
    for test in mutation.caught_by:
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test


TEST = "tests/test_a.py::test_it"
BROKEN = Mutation("broken", "nothing", "echo_queue/records/group_codec.py", "a", "b", (TEST,))


@pytest.mark.parametrize(
    ("said", "noticed"),
    [
        (f"FAILED {TEST} - assert 1 == 2", TEST),
        (f"FAILED {TEST}[redis-reply lost] - AssertionError", TEST),
        (f"FAILED {TEST}", TEST),
        (f"ERROR {TEST} - ServiceError: no", ""),
        (f"ERROR {TEST}", ""),
        (f"FAILED {TEST} - Failed: Timeout (>300.0s) from pytest-timeout.", ""),
        ("FAILED tests/test_a.py::test_another - assert 1 == 2", ""),
        ("ERROR tests/test_a.py", ""),
        ("no verdict within 180 s", ""),
        ("1 passed", ""),
    ],
)
def test_only_the_named_test_that_fails_by_what_it_asserts_counts(said: str, noticed: str) -> None:
    assert noticed_by(f"F\n{said}\n1 failed in 1 s", BROKEN) == noticed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("echo_queue/queue/library/state.lua", "#!lua name=echo_queue_1", "#!lua name=echo_queue_1\nlocal = ="),
        ("echo_queue/records/group_codec.py", "import orjson\n", "import orjson = =\n"),
    ],
    ids=["Lua", "Python"],
)
def test_code_that_is_no_program_is_not_caught(file: str, old: str, new: str) -> None:
    verdict = apply.try_out(Mutation("no program", "nothing", file, old, new, ("tests/records/test_group_codec.py",)))
    assert (verdict.noticed, verdict.said.partition(":")[0]) == ("", "does not load")


@pytest.mark.slow
def test_a_test_that_fails_where_nothing_is_broken_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(apply, "MUTATIONS", ())
    monkeypatch.setattr(apply, "control", lambda _: "FAILED")
    monkeypatch.setattr("sys.argv", ["apply"])
    assert main() == 1
    assert "where nothing is broken" in capsys.readouterr().out
    monkeypatch.undo()
    nowhere = Mutation(
        "nowhere", "nothing", "README.md", "a", "b", ("tests/records/test_group_codec.py::test_nothing",)
    )
    assert apply.control([nowhere]), "there is no such test"


@pytest.mark.proof(kind="mutations", share=0.05)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_a_broken_rule_is_noticed(mutation: Mutation) -> None:
    assert not apply.control([mutation]), "its tests fail where nothing is broken"
    verdict = apply.try_out(mutation)
    assert verdict.noticed, verdict.said
