"""A token opens one path of one server for one worker, for about a minute."""

import pytest

from workers.weights.peers.peer_auth import DOMAIN, LIFE_S, SKEW_S, PeerAuth, Refused

PATH = "/parts/weights/0001/00000007/full/a.part?from=0"


class Clock:
    def __init__(self, now_s: float = 1_700_000_000.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def test_a_token_opens_what_it_was_minted_for() -> None:
    tokens = PeerAuth(b"secret")
    assert tokens.check(tokens.mint("w2", "w1", PATH), "w1", PATH) == "w2"


@pytest.mark.parametrize(("upstream", "path"), [("w3", PATH), ("w1", PATH[:-1] + "1"), ("w1", "/parts/other?from=0")])
def test_it_opens_nothing_else(upstream: str, path: str) -> None:
    tokens = PeerAuth(b"secret")
    with pytest.raises(Refused):
        tokens.check(tokens.mint("w2", "w1", PATH), upstream, path)


@pytest.mark.parametrize("place", range(4))
def test_no_word_of_it_can_be_changed(place: int) -> None:
    tokens = PeerAuth(b"secret")
    words = tokens.mint("w2", "w1", PATH).split(" ")
    words[place] = words[place][:-1] + ("0" if words[place][-1] != "0" else "1")
    with pytest.raises(Refused):
        tokens.check(" ".join(words), "w1", PATH)


@pytest.mark.parametrize(
    "token", ["", "EQ1", "EQ1 w2 1 ", "EQ1 a b c d", "Bearer x y z", "é " * 3, "EQ1 w2 x" + " y" * 400]
)
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(Refused):
        PeerAuth(b"secret").check(token, "w1", PATH)


def test_another_runs_token_is_refused() -> None:
    with pytest.raises(Refused):
        PeerAuth(b"secret").check(PeerAuth(b"another").mint("w2", "w1", PATH), "w1", PATH)


def test_it_expires_and_none_is_good_for_longer_than_it_should_be() -> None:
    here, far = Clock(), Clock()
    mine, theirs = PeerAuth(b"secret", here), PeerAuth(b"secret", far)
    token = mine.mint("w2", "w1", PATH)
    far.now_s += LIFE_S + SKEW_S - 1
    theirs.check(token, "w1", PATH)
    far.now_s += 2
    with pytest.raises(Refused):
        theirs.check(token, "w1", PATH)
    far.now_s = here.now_s - SKEW_S - 2
    with pytest.raises(Refused):
        theirs.check(token, "w1", PATH)


def test_clocks_that_differ_are_set_by_redis_own() -> None:
    here, far, redis_s = Clock(), Clock(1_700_007_200.0), 1_700_000_123.0
    mine, theirs = PeerAuth(b"secret", here), PeerAuth(b"secret", far)
    mine.tune(redis_s)
    theirs.tune(redis_s)
    assert theirs.check(mine.mint("w2", "w1", PATH), "w1", PATH) == "w2"


def test_a_greeting_proves_the_server_that_it_was_made_for_and_expires() -> None:
    clock = Clock()
    peers = PeerAuth(b"secret", clock)
    greeting = peers.greeting("w1").removesuffix(b"\r\n\r\n")
    peers.check_greeting(greeting, "w1")
    for wrong, name in ((greeting, "w2"), (greeting[:-1], "w1"), (b"", "w1"), (b"EQ1 x y", "w1"), (b"\xff 1 2", "w1")):
        with pytest.raises(Refused):
            peers.check_greeting(wrong, name)
    with pytest.raises(Refused):
        PeerAuth(b"another", clock).check_greeting(greeting, "w1")
    clock.now_s += LIFE_S + SKEW_S + 1
    with pytest.raises(Refused):
        peers.check_greeting(greeting, "w1")


@pytest.mark.parametrize("expires", ["soon", "", "-5", "1_700", "\u0661", "1e9", "nan", "9" * 16, "9" * 4400])
def test_a_token_of_a_member_that_expires_at_no_time_is_refused(expires: str) -> None:
    peers = PeerAuth(b"secret")
    mark = peers._mark(DOMAIN, "w2", "w1", PATH, expires)
    with pytest.raises(Refused):
        peers.check(f"EQ1 w2 {expires} {mark}", "w1", PATH)


def test_a_greeting_is_no_token_and_a_token_no_greeting() -> None:
    peers = PeerAuth(b"secret")
    with pytest.raises(Refused):
        peers.check(peers.greeting("w1").decode().strip(), "w1", PATH)
    with pytest.raises(Refused):
        peers.check_greeting(peers.mint("w2", "w1", PATH).encode(), "w1")


def test_an_empty_secret_is_no_secret() -> None:
    with pytest.raises(ValueError, match="every reader"):
        PeerAuth(b"")
