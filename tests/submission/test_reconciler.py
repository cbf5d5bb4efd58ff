"""The reconciler presumes chunks lost as shown here."""

from echo_queue.submission.celery.reconciler import BrokerSnapshot, presumed_lost


def look(*numbers: int, messages: int = 0) -> BrokerSnapshot:
    return BrokerSnapshot(frozenset(("set", number) for number in numbers), messages)


def test_a_chunk_is_lost_when_it_waits_twice_and_no_message_does() -> None:
    assert presumed_lost(look(1, 2, 3), look(2, 3, 4)) == {("set", 2), ("set", 3)}


def test_nothing_is_lost_at_the_first_look() -> None:
    assert not presumed_lost(None, look(1))


def test_nothing_is_lost_while_messages_wait_for_a_worker() -> None:
    assert not presumed_lost(look(1), look(1, messages=1))
    assert not presumed_lost(look(1, messages=1), look(1))
