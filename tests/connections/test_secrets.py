"""The secrets that embedded services make: once, readable by their owner alone, and complete after an upgrade."""

from pathlib import Path

import orjson
import pytest

from echo_queue.connections.secrets import ROLES, generate, generated, generated_password
from echo_queue.errors import ServiceError


def test_a_run_of_an_earlier_release_gets_the_passwords_that_it_lacks_and_keeps_the_others(tmp_path: Path) -> None:
    before, path = generate(tmp_path), tmp_path / "secrets.json"
    values = orjson.loads(path.read_bytes())
    del values["redis"]["controller"]
    path.write_bytes(orjson.dumps(values))
    assert generated_password(tmp_path, "monitor") == before.redis["monitor"]
    with pytest.raises(ServiceError, match="no password for controller, since an earlier release"):
        generated_password(tmp_path, "controller")
    after = generate(tmp_path)
    assert set(after.redis) == set(ROLES) and after.redis["controller"] not in before.redis.values()
    assert {role: after.redis[role] for role in values["redis"]} == values["redis"]
    assert (after.store, generate(tmp_path)) == (before.store, after)
    assert path.stat().st_mode & 0o077 == 0


def test_a_file_that_is_no_json_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text("{")
    with pytest.raises(ServiceError, match="is damaged"):
        generate(tmp_path)
    with pytest.raises(ServiceError, match="is damaged"):
        generated(tmp_path)
    assert (tmp_path / "secrets.json").read_text() == "{"
