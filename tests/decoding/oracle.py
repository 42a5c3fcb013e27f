"""Slow, obvious searches of one question, and small decoders to search with."""

import math
from collections import Counter
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch

from homespun.decoding.hypotheses import Hypothesis

BEGIN, END = 0, 1


@dataclass(frozen=True)
class Table:
    """The next word depends on the last one only, with the probabilities of a table; the state is a step counter."""

    chances: torch.Tensor  # [last word, next word]
    banned: tuple[int, ...] = ()
    begin: int = BEGIN
    end: int = END

    @property
    def vocabulary(self):
        return len(self.chances)

    def start(self, inputs):
        return (torch.zeros(inputs, dtype=torch.long),)

    def step(self, tokens, state):
        return self.chances[tokens].log().float(), (state[0] + 1,)


@dataclass(frozen=True)
class Recurrent:
    """A random recurrent network; each question is the seed of its first state."""

    into: torch.Tensor  # [words, width]
    across: torch.Tensor  # [width, width]
    out: torch.Tensor  # [width, words]
    bias: torch.Tensor  # [words]
    banned: tuple[int, ...] = (BEGIN,)
    begin: int = BEGIN
    end: int = END

    @property
    def vocabulary(self):
        return len(self.bias)

    def start(self, inputs):
        rows = [torch.randn(self.across.shape[0], generator=torch.Generator().manual_seed(one)) for one in inputs]
        return (torch.stack(rows), torch.zeros(len(rows), 2, 3))

    def step(self, tokens, state):
        hidden = torch.tanh(state[0] @ self.across + self.into[tokens])
        return hidden @ self.out + self.bias, (hidden, state[1] + 1)


def make_recurrent(vocabulary, *, seed, width=6, spread=1.0, end_bias=0.0, banned=(BEGIN,)):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator) * spread

    bias = draw(vocabulary)
    bias[END] += end_bias
    return Recurrent(draw(vocabulary, width), draw(width, width), draw(width, vocabulary), bias, banned)


def log_probs_of(decoder, logits):
    """The log probability of each word, rounded to float32 as the definition says."""
    values = [float(value) for value in logits]
    most = max(values)
    total = most + math.log(sum(math.exp(value - most) for value in values))
    return [float(np.float32(value - total)) for value in values]


def next_words(decoder, hypothesis):
    """Log probabilities of the next word of a hypothesis, and the state after its last word."""
    last = hypothesis["words"][-1] if hypothesis["words"] else decoder.begin
    logits, state = decoder.step(torch.tensor([last]), hypothesis["state"])
    return log_probs_of(decoder, logits[0]), state


def search(decoder, state, *, beam, max_length, n_best=None, min_length=1):
    """Beam search of one question."""
    unfinished, finished = [{"words": (), "score": 0.0, "state": state}], []
    for length in range(max_length + 1):
        extensions = []
        for rank, hypothesis in enumerate(unfinished):
            chances, after = next_words(decoder, hypothesis)
            for word, chance in enumerate(chances):
                score = hypothesis["score"] + chance
                if word in decoder.banned or score == -math.inf:
                    continue
                if word == decoder.end:
                    if length >= min_length:
                        finished.append((-score, length, rank, hypothesis["words"]))
                elif length < max_length:
                    extensions.append((-score, rank, word, hypothesis["words"], after))
        extensions.sort(key=lambda one: one[:3])
        unfinished = [
            {"words": (*words, word), "score": -loss, "state": after}
            for loss, _, word, words, after in extensions[:beam]
        ]
    finished.sort()
    return [Hypothesis(words, -loss) for loss, _, _, words in finished[: n_best or beam]]


def search_diverse(decoder, state, *, beam, groups, diversity, max_length, n_best=None, min_length=1):
    """Diverse beam search of one question."""
    width, quota = beam // groups, (n_best or beam) // groups
    unfinished = [[{"words": (), "score": 0.0, "state": state}] for _ in range(groups)]
    finished = [[] for _ in range(groups)]
    for length in range(max_length + 1):
        chosen = Counter()  # words of earlier groups at this step
        for group in range(groups):
            extensions = []
            for rank, hypothesis in enumerate(unfinished[group]):
                chances, after = next_words(decoder, hypothesis)
                for word, chance in enumerate(chances):
                    score = hypothesis["score"] + chance
                    if word in decoder.banned or score == -math.inf:
                        continue
                    if word == decoder.end:
                        if length >= min_length:
                            finished[group].append((-score, length, rank, hypothesis["words"]))
                    elif length < max_length:
                        ranked = score - diversity * chosen[word]
                        extensions.append((-ranked, rank, word, score, hypothesis["words"], after))
            extensions.sort(key=lambda one: one[:3])
            unfinished[group] = [
                {"words": (*words, word), "score": score, "state": after}
                for _, _, word, score, words, after in extensions[:width]
            ]
            chosen.update(one["words"][-1] for one in unfinished[group])
    joined = {}
    for group in range(groups):
        for loss, _, _, words in sorted(finished[group])[:quota]:
            joined.setdefault(words, -loss)
    return [Hypothesis(words, score) for words, score in sorted(joined.items(), key=lambda one: -one[1])]


def enumerate_all(decoder, state, *, max_length, min_length=1):
    """Every sequence that can be generated, best first."""
    words = [word for word in range(decoder.vocabulary) if word != decoder.end and word not in decoder.banned]
    found = []
    for length in range(min_length, max_length + 1):
        for sequence in product(words, repeat=length):
            score, at = 0.0, state
            for read, written in zip((decoder.begin, *sequence), (*sequence, decoder.end), strict=True):
                logits, at = decoder.step(torch.tensor([read]), at)
                score += log_probs_of(decoder, logits[0])[written]
            found.append(Hypothesis(sequence, score))
    return sorted(found, key=lambda one: -one.log_prob)
