"""Reading rollouts: one file a foreign log format, found by looking at the file (docs/formats.md has the table).

>>> from rollonce.readers import read_rollouts  # doctest: +SKIP
>>> table = read_rollouts("logs/*.jsonl", columns=["level"])  # doctest: +SKIP
"""

from rollonce.readers.follow import Rows, follow
from rollonce.readers.read import read_rollouts
from rollonce.readers.registry import FORMATS

__all__ = ["FORMATS", "Rows", "follow", "read_rollouts"]
