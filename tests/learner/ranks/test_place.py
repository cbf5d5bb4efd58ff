import pytest

from echo_queue.errors import ConfigError
from learner.ranks.place import LAUNCHED, Place

GIVEN = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


def test_torchruns_variables_give_the_place() -> None:
    assert Place.of(GIVEN) == Place(9, 16, 1, launched=False)
    assert Place.of(GIVEN | {LAUNCHED: "1"}) == Place(9, 16, 1, launched=True)
    assert Place.of({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert Place.of({"MASTER_ADDR": "10.0.0.1", "PATH": "/bin"}) is None


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        (
            {name: GIVEN[name] for name in ("RANK", "WORLD_SIZE")},
            "LOCAL_RANK, MASTER_ADDR, MASTER_PORT: not set",
        ),
        ({"WORLD_SIZE": "2"}, "RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT: not set, although WORLD_SIZE is"),
        (GIVEN | {"LOCAL_RANK": "one"}, "not all numbers: invalid literal for int"),
    ],
)
def test_half_a_place_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Place.of(environ)
