"""Where a word stands among those that can be suggested, and how much of it has to be typed until it is suggested."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

SUGGESTED = 3  # words suggested at once
NO_RANK = -1  # of a word that cannot be suggested
NOTHING = -1  # target of a position without a word to predict
AFTER_ALL = chr(0x10FFFF)


class Ranking:
    """Ranks words among those with numbers from `first` on, which are `words`.

    A word that is typed is suggested if it is one of the three likeliest that begin with the letters typed so far; of
    equally likely words, the one with the lower number is first.
    """

    def __init__(self, words: Sequence[str], *, first: int) -> None:
        self.first = first
        order = sorted(range(len(words)), key=words.__getitem__)
        listed = [words[place] for place in order]
        self._order = torch.tensor(order, dtype=torch.int64)
        longest = max(map(len, words), default=0)
        # For every word and number of letters, the words in `order` that begin with these letters
        ranges = np.zeros((2, len(words), longest + 1), dtype=np.int64)
        known: dict[str, tuple[int, int]] = {}
        for place, word in enumerate(words):
            for letters in range(len(word) + 1):
                prefix = word[:letters]
                if prefix not in known:
                    start = bisect_left(listed, prefix)
                    known[prefix] = start, bisect_left(listed, prefix + AFTER_ALL, lo=start)
                ranges[:, place, letters] = known[prefix]
        self._begin, self._end = torch.from_numpy(ranges)
        self._letters = torch.tensor([len(word) for word in words], dtype=torch.int64)

    def __call__(self, scores: Tensor, targets: Tensor) -> Tensor:
        """[positions, 2] from scores [positions, numbers] and targets [positions]: the rank of each target from 0, or
        NO_RANK for a word that cannot be suggested, and the number of its letters that its suggestion saves. Both are 0
        where the target is NOTHING."""
        can = targets >= self.first
        found = scores.new_zeros(len(targets), 2)
        found[~can & (targets != NOTHING), 0] = NO_RANK
        if not can.any():
            return found
        place = targets[can] - self.first
        offered = scores[can, self.first :]
        chosen = offered.gather(1, place[:, None])
        numbers = torch.arange(offered.shape[1], device=scores.device)
        before = (offered > chosen) | ((offered == chosen) & (numbers < place[:, None]))
        found[can, 0] = before.sum(dim=1).to(scores)
        counted = torch.nn.functional.pad(before[:, self._order].cumsum(dim=1), (1, 0))
        with_letters = counted.gather(1, self._end[place]) - counted.gather(1, self._begin[place])
        typed = (with_letters < SUGGESTED).int().argmax(dim=1)  # the first number of letters with which it is suggested
        found[can, 1] = (self._letters[place] - typed).clamp(min=0).to(scores)
        return found
