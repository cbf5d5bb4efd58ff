"""Two-player poker for a language model, as prompts and an interactive environment of one's own (configs/poker.toml).

`Hands` is what `prompts.source` names, `Table` what `environment.function` names.
"""

from configs.poker.hands import Hands
from configs.poker.table import Hand, Table

__all__ = ["Hand", "Hands", "Table"]
