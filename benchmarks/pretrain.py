"""Workload pretrain: stage 1 of FedNLG, pre-training of a reply model, against the frozen reference, alternating.

    homespun bench pretrain
    homespun bench pretrain --set data=FILE --set batch=1024 --set threads=1

Both sides start from the same weights and take steps of Adam on the same batches. Dropout is on while they are timed;
the two sides draw different numbers, so `max_loss_difference` compares steps without dropout. Both sides
are timed with every number of threads up to `threads`, the reference with a packed and with a padded encoder; the best
of each side counts. Pairs are those of a corpus of dialogues (`data`), texts of at most 20 words, or random words in
texts with lengths as in dialogues.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))

import reference_pretrain as reference
from alternating import timed
from gemm import gemm_peak_gflops
from memory import peak_rss_mb
from w4 import our_name

from homespun.core.errors import SettingsError
from homespun.core.seeds import numpy_generator
from homespun.data.dialogue import replies
from homespun.models.reply_model import Sizes
from homespun.models.vocabulary import PADDING, SPECIAL, Vocabulary
from homespun.pretraining.central import TrainingState, initial_state, take_step
from homespun.pretraining.reply_pairs import PairCorpus, Pairs, make_corpus
from homespun.pretraining.reply_training import ReplyObjective, ReplyPretrainSettings
from homespun.runs.training import load
from homespun.system.machine import cpu_cores

SEED = 0
ROUND_PAIRS = 512  # pairs of a round, at least one batch
COMPARED_STEPS = 3  # without dropout
GENERATED = 20_000  # pairs
SIZES = Sizes(word_dim=reference.WORD_DIM, cells=reference.CELLS, layers=reference.LAYERS, length=reference.LENGTH)


def generate_corpus(pairs: int = GENERATED) -> PairCorpus:
    """Random words, rank r with a frequency of 1 / r, in texts whose lengths are log-normal: 2 to 20 words, 8.4 on
    average."""
    generator = numpy_generator(SEED, "pairs")
    frequencies = 1 / np.arange(1, reference.VOCABULARY - SPECIAL + 1)

    def side() -> tuple[np.ndarray, np.ndarray]:
        drawn = generator.lognormal(np.log(8), 0.65, size=4 * pairs).round().astype(np.int64)
        lengths = drawn[(drawn >= 2) & (drawn <= reference.LENGTH)][:pairs]
        shape = pairs, reference.LENGTH
        numbers = SPECIAL + generator.choice(len(frequencies), shape, p=frequencies / frequencies.sum())
        return np.where(np.arange(reference.LENGTH) < lengths[:, None], numbers, PADDING), lengths

    (question, question_length), (reply, reply_length) = side(), side()
    whole = Pairs(question, question_length, reply, reply_length + 1)
    return PairCorpus(_words(()), whole, whole.take(np.arange(0)), unknown=0.0, conversations=pairs)


def _words(known: Sequence[str]) -> Vocabulary:
    """These words, filled up to the size of the reference with words that do not occur."""
    filler = (f"<{number}>" for number in range(reference.VOCABULARY - SPECIAL - len(known)))
    return Vocabulary((*known, *filler))


def load_pairs(file: str) -> PairCorpus:
    """The pairs of a corpus of dialogues, or generated ones."""
    if not file:
        return generate_corpus()
    found = make_corpus(
        replies(load(file, max_words=reference.LENGTH)),
        words=reference.VOCABULARY,
        sizes=SIZES,
        direction="replies",
        dev_share=0.02,
        seed=SEED,
    )
    return PairCorpus(_words(found.vocabulary.known), found.train, found.dev, found.unknown, found.conversations)


class Ours:
    """homespun's side, from the weights of the reference."""

    def __init__(self, corpus: PairCorpus, *, batch: int, dropout: float) -> None:
        settings = ReplyPretrainSettings(
            words=reference.VOCABULARY,
            sizes=SIZES,
            batch=batch,
            lr=reference.RATE,
            dropout=dropout,
            clip_norm=reference.CLIP,
            seed=SEED,
        )
        self.objective = ReplyObjective(corpus, settings)
        self.state: TrainingState = initial_state(self.objective)
        own = dict(self.state.network.named_parameters())
        with torch.no_grad():
            for name, value in reference.make_model().named_parameters():
                own[our_name(name)].copy_(value)

    def run(self, batches: Sequence[np.ndarray]) -> list[float]:
        """The loss of each step."""
        losses = []
        for rows in batches:
            losses.append(take_step(self.state, self.objective, rows, progress=0.0))
            self.state.step += 1
        return losses


class Theirs:
    """The reference's side."""

    def __init__(self, corpus: PairCorpus, *, dropout: float, packed: bool = True) -> None:
        pairs = corpus.train
        columns = (pairs.question, pairs.question_length, pairs.reply, pairs.length - 1)
        self.data = reference.Data(*(torch.from_numpy(column.astype(np.int64)) for column in columns))
        self.model = reference.make_model(dropout, packed=packed)
        self.optimizer = reference.make_optimizer(self.model)

    def run(self, batches: Sequence[np.ndarray]) -> list[float]:
        return [reference.take_step(self.model, self.optimizer, self.data, torch.from_numpy(rows)) for rows in batches]


@dataclass
class Times:
    """Seconds of each round."""

    ours_s: dict[int, list[float]] = field(default_factory=dict)  # by number of threads
    theirs_s: dict[tuple[str, int], list[float]] = field(default_factory=dict)  # by encoder and number of threads
    peaks: list[float] = field(default_factory=list)

    def figures(self, *, pairs: int, flop: float) -> dict[str, float | int | str]:
        """Medians over rounds of `pairs` pairs and `flop` nominal operations each."""
        medians = {variant: statistics.median(seconds) for variant, seconds in self.theirs_s.items()}
        best = min(medians, key=lambda variant: medians[variant])
        ours_medians = {threads: statistics.median(seconds) for threads, seconds in self.ours_s.items()}
        threads = min(ours_medians, key=lambda number: ours_medians[number])
        ours, theirs, peak = ours_medians[threads], medians[best], max(self.peaks)
        return {
            **{f"reference_{encoder}_{n}_pairs_per_s": pairs / one for (encoder, n), one in medians.items()},
            "reference_encoder": best[0],
            "reference_threads": best[1],
            "reference_pairs_per_s": pairs / theirs,
            **{f"ours_{n}_pairs_per_s": pairs / one for n, one in ours_medians.items()},
            "ours_threads": threads,
            "ours_pairs_per_s": pairs / ours,
            "ratio": theirs / ours,
            "gemm_peak_gflops": peak,
            "gemm_share": flop / ours / 1e9 / peak,
            "reference_gemm_share": flop / theirs / 1e9 / peak,
        }


def flop(pairs: Pairs) -> float:
    """Nominal operations for real words only; a multiply-add counts as two, backward as twice the forward pass."""
    layers = reference.LAYERS * 4 * reference.CELLS * 2 * reference.CELLS
    written = layers + reference.CELLS * reference.VOCABULARY
    return 3 * 2 * float(pairs.question_length.sum() * layers + pairs.length.sum() * written)


def plan(corpus: PairCorpus, *, batch: int, rounds: int) -> list[list[np.ndarray]]:
    """The pairs of each step of each round; small corpora repeat."""
    steps = max(1, ROUND_PAIRS // batch)
    order = numpy_generator(SEED, "order").permutation(len(corpus.train))
    needed = np.resize(order, rounds * steps * batch).reshape(rounds, steps, batch)
    return [list(one) for one in needed]


def max_loss_difference(corpus: PairCorpus, *, batch: int) -> float:
    """Over some steps without dropout."""
    batches = plan(corpus, batch=batch, rounds=COMPARED_STEPS)
    some = [one for each in batches for one in each][:COMPARED_STEPS]
    ours = Ours(corpus, batch=batch, dropout=0.0).run(some)
    theirs = Theirs(corpus, dropout=0.0).run(some)
    return max(abs(one - other) for one, other in zip(ours, theirs, strict=True))


def measure(rounds: int = 3, data: str = "", batch: int = 128, threads: int = 0) -> dict[str, float | int | str]:
    """`data` is a file of dialogues; `threads` is the largest number of threads of either side, 0: all cores."""
    if batch < 1 or threads < 0:
        raise SettingsError(f"batch is {batch} and threads {threads}: expected at least 1 and 0.")
    corpus, threads = load_pairs(data), threads or cpu_cores()
    ours = Ours(corpus, batch=batch, dropout=reference.DROPOUT)
    theirs = {
        encoder: Theirs(corpus, dropout=reference.DROPOUT, packed=encoder == "packed")
        for encoder in ("packed", "padded")
    }
    rehearsal, *planned = plan(corpus, batch=batch, rounds=rounds + 1)
    counts = range(1, threads + 1)
    variants = list(product(theirs, counts))
    times = Times({count: [] for count in counts}, {variant: [] for variant in variants})
    ours.run(rehearsal[:1])
    for batches in planned:
        for encoder, count in variants:
            torch.set_num_threads(count)
            times.theirs_s[encoder, count].append(timed(partial(theirs[encoder].run, batches))[0])
        for count in counts:
            torch.set_num_threads(count)
            times.ours_s[count].append(timed(partial(ours.run, batches))[0])
        times.peaks.append(gemm_peak_gflops(threads))
    taken = corpus.train.take(np.concatenate([rows for batches in planned for rows in batches]))
    return {
        "rounds": rounds,
        "pairs_per_round": len(taken) // rounds,
        "batch": batch,
        "threads": threads,
        "words_per_question": float(taken.question_length.mean()),
        "words_per_reply": float(taken.length.mean()) - 1,
        **times.figures(pairs=len(taken) // rounds, flop=flop(taken) / rounds),
        "max_loss_difference": max_loss_difference(corpus, batch=batch),
        "peak_rss_mb": peak_rss_mb(),
    }
