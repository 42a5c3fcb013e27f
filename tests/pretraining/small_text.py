"""Random prose, enough to train a very small model."""

import random

SUBJECTS = ("the miller", "a clerk", "our neighbour", "the old ferry", "every child", "the council")
VERBS = ("finds", "mends", "carries", "forgets", "sells", "praises")
OBJECTS = ("a red lamp", "the broken gate", "two letters", "some bread", "the long road", "a quiet song")
ENDS = ("before noon", "in the rain", "without a word", "for nothing", "near the mill", "once more")


def prose(paragraphs, seed=0):
    draw = random.Random(seed)
    return ["\n".join(_sentence(draw) for _ in range(3)).replace("\n", " ") for _ in range(paragraphs)]


def _sentence(draw):
    words = " ".join(draw.choice(part) for part in (SUBJECTS, VERBS, OBJECTS, ENDS))
    return f"{words[0].upper()}{words[1:]}."
