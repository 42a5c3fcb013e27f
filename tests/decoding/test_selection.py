"""The best extensions, found in classes of words, are those of a full sort."""

import numpy as np
import pytest
import torch

from homespun.decoding.selection import best_of_each, find_extensions


def sort_all(log_probs, scores, unit, floor, count):
    """The `count` best extensions of each unit, by a full sort."""
    found = []
    for one in range(int(unit.max()) + 1):
        every = [
            (-float(scores[row] + value.double()), row, word)
            for row in np.flatnonzero(unit.numpy() == one).tolist()
            for word, value in enumerate(log_probs[row])
        ]
        found += [(one, *entry) for entry in sorted(every)[:count] if -entry[0] > float(floor[one])]
    return found


def select(log_probs, scores, unit, floor, *, count, classes):
    found = find_extensions(log_probs, scores, unit=unit, floor=floor, count=count, classes=classes)
    units = unit.numpy()[found.row]
    best = best_of_each(units, (-found.score, found.row, found.word), count)
    columns = (units[best], -found.score[best], found.row[best], found.word[best])
    return list(zip(*(column.tolist() for column in columns), strict=True)), len(found.row)


@pytest.mark.parametrize("levels", [None, 3])  # 3: most extensions tie
@pytest.mark.parametrize("classes", [1, 2, 7, 16, 64])
@pytest.mark.parametrize("vocabulary", [1, 2, 15, 16, 17, 64])
def test_classes_of_words_give_what_a_full_sort_gives(vocabulary, classes, levels):
    generator = torch.Generator().manual_seed(vocabulary * 100 + classes)
    log_probs = torch.randn(7, vocabulary, generator=generator)
    if levels:
        log_probs = (log_probs * levels).round() / levels
    log_probs[:, vocabulary // 2] = -torch.inf
    scores = torch.randn(7, generator=generator).double() if levels is None else torch.zeros(7).double()
    unit = torch.tensor([0, 0, 0, 1, 2, 2, 2])
    for count in (1, 4, 30, 1000):
        for floor in (torch.full((3,), -torch.inf).double(), torch.tensor([-torch.inf, 0.5, -0.5]).double()):
            found, _ = select(log_probs, scores, unit, floor, count=count, classes=classes)
            assert found == sort_all(log_probs, scores, unit, floor, count)


def test_few_words_are_looked_at():
    log_probs = torch.randn(50, 5000, generator=torch.Generator().manual_seed(0))
    unit, floor = torch.zeros(50, dtype=torch.long), torch.tensor([-torch.inf]).double()
    found, seen = select(log_probs, torch.zeros(50).double(), unit, floor, count=40, classes=256)
    assert len(found) == 40
    assert seen < 60  # of 250,000


def test_best_of_each_unit():
    unit = np.array([1, 0, 1, 1, 0])
    loss = np.array([2.0, 5.0, 1.0, 1.0, 4.0])
    assert best_of_each(unit, (loss,), 2).tolist() == [4, 1, 2, 3]
    assert best_of_each(unit, (loss, np.array([0, 0, 9, 8, 0])), 1).tolist() == [4, 3]
    assert best_of_each(unit[:0], (loss[:0],), 2).tolist() == []
