"""Two-player poker for a language model: rules from OpenSpiel, opponents, and a hand told in words."""

from echo_queue.submission.sources.poker.hand import Deal, Hand, deal_of
from echo_queue.submission.sources.poker.opponents import OPPONENTS
from echo_queue.submission.sources.poker.rules import GAMES

__all__ = ["GAMES", "OPPONENTS", "Deal", "Hand", "deal_of"]
