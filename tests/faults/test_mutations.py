"""The suite notices when a rule of the product is broken: the list is true to the code, the tests and the docs."""

import re

import pytest

from tests.faults.mutate import ROOT, documented, main, table
from tests.faults.mutations import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.name)
def test_a_mutation_changes_todays_code_in_one_place_and_names_tests_that_exist(mutation: Mutation) -> None:
    text = (ROOT / mutation.file).read_text()
    assert mutation.apply(text) != text
    for test in mutation.caught_by:
        file, _, name = test.partition("::")
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE), test


def test_the_table_in_the_docs_is_the_list() -> None:
    assert documented() == table(), "run `python -m tests.faults.mutate --write`"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["mutate"])
    assert main() == 0, capsys.readouterr().out
