"""A hand in words: OpenSpiel's rules, one course for each deal and the model's moves, chips in the end."""

import random
import re
from dataclasses import asdict
from itertools import product
from statistics import fmean

import pytest

from configs.poker import Hand, Table
from configs.poker.opponents import OPPONENTS
from configs.poker.rules import GAMES
from configs.poker.table import Deal

SOLVED = ("leduc", "equilibrium")
"""Solving Leduc for its equilibrium takes seconds."""
EVERY = [pytest.param(*both, marks=pytest.mark.slow if both == SOLVED else ()) for both in product(GAMES, OPPONENTS)]
MOST = {"kuhn": 2, "leduc": 13}


def play(deal: Deal, seed: int = 0) -> tuple[str, float]:
    """The transcript of a hand played at random, and its chips."""
    hand, rng = Hand(deal), random.Random(seed)
    text = hand.prompt
    while True:
        move = rng.choice(hand.moves)
        answer = hand.reply(f" {move}")
        text += f" {move}"
        if not isinstance(answer, str):
            return text, answer
        text += answer


def hands(game: str, opponent: str, count: int = 200) -> list[tuple[str, float]]:
    return [play(Deal(game, opponent, number, number % 2), number) for number in range(count)]


@pytest.mark.parametrize(("game", "opponent"), EVERY)
def test_a_hand_ends_with_chips_that_the_game_can_be_about(game: str, opponent: str) -> None:
    played = hands(game, opponent)
    assert all(0 < abs(chips) <= MOST[game] or (chips == 0 and game == "leduc") for _, chips in played)
    assert {chips > 0 for _, chips in played} == {True, False}


@pytest.mark.parametrize(("game", "opponent"), EVERY)
def test_a_deal_and_the_models_moves_decide_everything(game: str, opponent: str) -> None:
    assert hands(game, opponent, 50) == hands(game, opponent, 50)
    deal = Deal(game, opponent, 3, 1)
    assert Table().start("", asdict(deal), 0).prompt == Hand(deal).prompt


def test_the_public_card_is_the_same_whatever_was_moved_before() -> None:
    for number in range(20):
        texts = [play(Deal("leduc", "random", number, 0), seed)[0] for seed in range(20)]
        shown = {card for text in texts for card in re.findall(r"Public card: (.)", text)}
        assert len(shown) == 1


def test_cards_are_dealt_evenly() -> None:
    cards = [re.search(r"Your card: (.)", Hand(Deal("leduc", "tight", number, 0)).prompt) for number in range(600)]
    counts = [sum(card is not None and card[1] == rank for card in cards) for rank in "JQK"]
    assert sum(counts) == 600 and min(counts) > 150


def test_who_sits_second_is_told_what_the_first_one_did() -> None:
    assert Hand(Deal("kuhn", "tight", 1, 0)).prompt.endswith(" Your move (check, bet):")
    told = {Hand(Deal("kuhn", "random", number, 1)).prompt.partition("Your card: ")[2][3:] for number in range(50)}
    assert told == {"Opponent: check. Your move (check, bet):", "Opponent: bet. Your move (fold, call):"}


@pytest.mark.parametrize("text", ["", " ", "fold", "all in", "🂡", "I bet"])
def test_what_is_no_legal_move_costs_the_pot_and_a_chip(text: str) -> None:
    assert Hand(Deal("kuhn", "tight", 1, 0)).reply(text) == -2.0


def test_a_forfeit_costs_what_was_bet_before() -> None:
    raised = (Hand(Deal("leduc", "random", number, 0)) for number in range(50))
    hand = next(one for one in raised if "raise" in str(one.reply("bet")))
    assert hand.moves == ["fold", "call"]
    assert hand.unfinished() == -4.0
    assert hand.reply("fold") == -3.0


@pytest.mark.parametrize("text", ["BET.", " bet", "bet, since I hold a king", "**bet**"])
def test_a_move_is_the_first_word(text: str) -> None:
    bet = Hand(Deal("kuhn", "tight", 1, 0)).reply("bet")
    assert Hand(Deal("kuhn", "tight", 1, 0)).reply(text) == bet


def test_a_tight_opponent_bets_and_calls_with_the_best_only() -> None:
    for number in range(100):
        hand = Hand(Deal("kuhn", "tight", number, 0))
        mine = hand.prompt.partition("Your card: ")[2][0]
        if mine == "K":
            assert hand.reply("bet") == 1.0, "it folds what is less than a king"
        else:
            assert hand.reply("bet") in (1.0, -2.0)


def test_an_opponent_at_equilibrium_is_not_beaten_by_one_that_plays_at_random() -> None:
    """The game is worth −1/18 to the player that moves first: alternating, neither has the better seat."""
    chips = {name: fmean(chips for _, chips in hands("kuhn", name, 2_000)) for name in ("equilibrium", "random")}
    assert chips["equilibrium"] < -0.1 < chips["random"]


@pytest.mark.parametrize(
    ("deal", "reason"),
    [
        (Deal("stud", "tight", 1, 0), "no game 'stud'.*kuhn, leduc"),
        (Deal("kuhn", "bot", 1, 0), "no opponent 'bot'.*random, tight, equilibrium"),
    ],
)
def test_what_there_is_not_is_named(deal: Deal, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Hand(deal)
