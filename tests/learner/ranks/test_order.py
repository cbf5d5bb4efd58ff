import numpy as np
import pytest

from echo_queue.records import Group, Version, group_codec
from learner.ranks import order
from learner.ranks.order import Order
from tests.learner.synthetic import group


@pytest.mark.parametrize("groups", [(), tuple(map(group, range(3)))], ids=["none", "three"])
@pytest.mark.parametrize("reused", [(), tuple(map(group, range(7, 9)))], ids=["nothing reused", "two reused"])
@pytest.mark.parametrize("step", ["publish", "save", "export"])
def test_an_order_reaches_other_ranks_as_it_was_decided(
    groups: tuple[Group, ...], reused: tuple[Group, ...], step: str
) -> None:
    decided = Order(Version(3, 71), groups, reused, **{step: True})
    heard = order.decode(order.encode(decided))
    assert (heard.version, heard.publish, heard.save, heard.export) == (
        decided.version,
        decided.publish,
        decided.save,
        decided.export,
    )
    assert list(map(group_codec.encode, heard.groups)) == list(map(group_codec.encode, decided.groups))
    assert list(map(group_codec.encode, heard.reused)) == list(map(group_codec.encode, decided.reused))
    assert all(np.array_equal(a.prompt, b.prompt) for a, b in zip(heard.groups, groups, strict=True))
