"""Builds the training corpus from texts: a vocabulary, packed sequences, and held-out documents.

A paragraph is split into documents of one or more sentences, because the model is later used on single sentences. A
sequence consists of whole documents, each after `<|endoftext|>`, so that every sequence begins at the start of a
sentence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from homespun.core.errors import DataError
from homespun.core.seeds import derive, numpy_generator
from homespun.core.settings import Settings
from homespun.data.sentences import split_sentences
from homespun.pretraining.overlap import Overlap, measure, require_low_overlap, without_overlap
from homespun.pretraining.sources import Text

END = "<|endoftext|>"  # begins and ends every document
END_ID = 0
PADDING = -1
# Number of sentences in a document: one, two, three, or as many as fit.
LENGTHS, LENGTH_SHARES = (1, 2, 3, 1_000), (0.4, 0.2, 0.1, 0.3)


class CorpusSettings(Settings):
    """How texts become sequences."""

    vocabulary: int = 8192
    """Vocabulary size of the tokenizer."""
    sequence: int = 128
    """Tokens in a sequence."""
    stretch: int = 40_000
    """Approximate number of characters of a source that share one style vector."""
    held_out: float = 0.01
    """Share of the paragraphs that are held out."""
    held_out_documents: int = 250
    """Maximum number of held-out documents per source, to keep evaluation fast."""
    evaluated_sentences: int = 3_000
    """Sentences of the evaluated users on which perplexity is measured."""
    drop_overlap: bool = False
    """Whether paragraphs of the user's own files that overlap with evaluated sentences are dropped too."""


@dataclass(frozen=True)
class SourceFacts:
    """Facts about one source for the model card."""

    name: str
    what: str
    licence: str
    origin: str
    weight: float
    characters: int
    tokens: int
    dropped: int  # paragraphs that overlap with evaluated sentences
    repeated: int  # paragraphs that repeat an earlier one


@dataclass(frozen=True)
class Corpus:
    """Token ids by source: `sequences` to train on; `held_out` and `evaluated` with one document per row.

    `stretches` holds the stretch of each sequence, counted from 0 in each source.
    """

    tokenizer: Tokenizer
    sequences: Mapping[str, np.ndarray]
    stretches: Mapping[str, np.ndarray]
    held_out: Mapping[str, np.ndarray]
    evaluated: np.ndarray
    evaluated_bytes: int
    facts: tuple[SourceFacts, ...]
    overlap: Overlap
    overlap_before: Overlap  # before paragraphs were dropped

    @property
    def fingerprint(self) -> str:
        """A hash of the training data."""
        digest = hashlib.sha256(self.tokenizer.to_str().encode())
        for name, rows in self.sequences.items():
            digest.update(json.dumps([name, rows.shape]).encode() + rows.tobytes() + self.stretches[name].tobytes())
        return digest.hexdigest()


def build_corpus(texts: Sequence[Text], evaluated: Sequence[str], *, settings: CorpusSettings, seed: int) -> Corpus:
    """Build the corpus of these texts. Raises if it contains too much of the evaluated text."""
    if not texts:
        raise DataError("no text to train on. Name a file with --text, or leave out fewer sources.")
    unique = _unique(texts)
    before = measure(evaluated, unique)
    kept = {
        text.name: unique[text.name]
        if text.given and not settings.drop_overlap
        else without_overlap(evaluated, unique[text.name])
        for text in texts
    }
    trained = {name: [one for one in kept[name] if not _is_held_out(one, settings, seed)] for name in kept}
    overlap = measure(evaluated, trained)
    require_low_overlap(overlap)
    if empty := [name for name, paragraphs in trained.items() if not paragraphs]:
        raise DataError(f"no paragraph is left to train on in: {', '.join(empty)}. Leave these out, or add text.")
    tokenizer = train_tokenizer((one for paragraphs in trained.values() for one in paragraphs), settings.vocabulary)
    sequences, stretches, held_out, facts = {}, {}, {}, []
    for text in texts:
        documents = [
            _documents(one, tokenizer, limit=settings.sequence, seed=derive(seed, text.name, number))
            for number, one in enumerate(_stretches(trained[text.name], settings.stretch))
        ]
        packed = [pack(one, settings.sequence + 1) for one in documents]
        sequences[text.name] = np.concatenate(packed)
        stretches[text.name] = np.repeat(np.arange(len(packed), dtype=np.int32), [len(one) for one in packed])
        away = [one for one in kept[text.name] if _is_held_out(one, settings, seed)]
        away_documents = _documents(away, tokenizer, limit=settings.sequence, seed=seed)
        apart = -(-len(away_documents) // settings.held_out_documents) or 1  # spread over the whole source
        held_out[text.name] = _rows(away_documents[::apart], settings.sequence + 1)
        facts.append(
            SourceFacts(
                **{name: getattr(text, name) for name in ("name", "what", "licence", "origin", "weight")},
                characters=sum(map(len, trained[text.name])),
                tokens=sum(len(one) for stretch in documents for one in stretch),
                dropped=len(unique[text.name]) - len(kept[text.name]),
                repeated=len(text.paragraphs) - len(unique[text.name]),
            )
        )
    chosen = _drawn(evaluated, settings.evaluated_sentences, seed=seed)
    encoded = [[END_ID, *one.ids][: settings.sequence + 1] for one in tokenizer.encode_batch(chosen)]
    read_bytes = sum(len(tokenizer.decode(one[1:]).encode()) for one in encoded)
    return Corpus(
        tokenizer=tokenizer,
        sequences=sequences,
        stretches=stretches,
        held_out=held_out,
        evaluated=_rows(encoded, settings.sequence + 1),
        evaluated_bytes=read_bytes,
        facts=tuple(facts),
        overlap=overlap,
        overlap_before=before,
    )


def _unique(texts: Sequence[Text]) -> dict[str, list[str]]:
    """Each paragraph once, in the first source that has it."""
    seen: set[str] = set()
    found: dict[str, list[str]] = {}
    for text in texts:
        if text.name in found:
            raise DataError(f"two texts are called {text.name!r}. Rename one of the files.")
        found[text.name] = []
        for paragraph in text.paragraphs:
            key = paragraph.casefold()
            if key not in seen:
                seen.add(key)
                found[text.name].append(paragraph)
    return found


def _is_held_out(paragraph: str, settings: CorpusSettings, seed: int) -> bool:
    """Decided by the paragraph's text alone, so that adding a source does not change what others hold out."""
    return derive(seed, "held out", paragraph) < settings.held_out * 2**64


def _drawn(sentences: Sequence[str], count: int, *, seed: int) -> list[str]:
    if len(sentences) <= count:
        return list(sentences)
    rows = numpy_generator(seed, "evaluated").choice(len(sentences), size=count, replace=False)
    return [sentences[row] for row in sorted(rows)]


def train_tokenizer(paragraphs: Iterable[str], vocabulary: int) -> Tokenizer:
    """Train a byte-level BPE tokenizer, which can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(paragraphs, trainer)
    return tokenizer


def _stretches(paragraphs: Sequence[str], characters: int) -> list[list[str]]:
    """Split paragraphs, in order, into runs of about equal numbers of characters."""
    count = max(1, round(sum(map(len, paragraphs)) / characters))
    each = -(-sum(map(len, paragraphs)) // count)
    found: list[list[str]] = []
    begun = 0
    for paragraph in paragraphs:
        if begun // each >= len(found):
            found.append([])
        found[-1].append(paragraph)
        begun += len(paragraph)
    return found


def _documents(paragraphs: Sequence[str], tokenizer: Tokenizer, *, limit: int, seed: int) -> list[list[int]]:
    """Token ids of documents, each beginning with END and at most `limit` long. Longer sentences are truncated."""
    generator = numpy_generator(seed, "documents")
    documents: list[list[int]] = []
    for paragraph in paragraphs:
        wanted, count = 0, 0
        for sentence in split_sentences(paragraph):
            # the leading space belongs to the first word, so that sentences can be concatenated
            piece = tokenizer.encode(f" {sentence}").ids
            if count == wanted or len(documents[-1]) + len(piece) > limit:
                documents.append([END_ID, *tokenizer.encode(sentence).ids][:limit])
                wanted, count = int(generator.choice(LENGTHS, p=LENGTH_SHARES)), 1
            else:
                documents[-1].extend(piece)
                count += 1
    return documents


def pack(documents: Sequence[Sequence[int]], length: int) -> np.ndarray:
    """Pack whole documents into rows of `length` tokens, with END after the last document, then padding.

    Best fit decreasing: longest documents first, each into the fullest row with enough room.
    """
    rows: list[list[int]] = []
    with_room: list[list[int]] = [[] for _ in range(length + 1)]
    rooms = 0  # bit r: some row has room for r tokens
    for document in sorted(documents, key=len, reverse=True):
        size = len(document)
        fitting = rooms >> size
        if fitting:
            room = size + (fitting & -fitting).bit_length() - 1
            row = with_room[room].pop()
            if not with_room[room]:
                rooms &= ~(1 << room)
        else:
            room, row = length - 1, len(rows)  # one position is for the END after the last document
            rows.append([])
        rows[row].extend(document)
        with_room[room - size].append(row)
        rooms |= 1 << (room - size)
    return _rows([[*row, END_ID] for row in rows], length)


def _rows(documents: Sequence[Sequence[int]], length: int) -> np.ndarray:
    rows = np.full((len(documents), length), PADDING, dtype=np.int32)
    for row, document in zip(rows, documents, strict=True):
        row[: len(document)] = document
    return rows


def save_corpus(corpus: Corpus, folder: Path) -> None:
    """Write a corpus. `corpus.json` is written last, so a folder with it is complete."""
    from safetensors.numpy import save

    from homespun.system.disk import write_whole
    from homespun.system.json_files import SCHEMA, write_json

    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "tokenizer.json", corpus.tokenizer.to_str(pretty=True))
    arrays = {f"sequences/{name}": rows for name, rows in corpus.sequences.items()}
    arrays |= {f"stretches/{name}": rows for name, rows in corpus.stretches.items()}
    arrays |= {f"held_out/{name}": rows for name, rows in corpus.held_out.items()}
    write_whole(folder / "tokens.safetensors", save({**arrays, "evaluated": corpus.evaluated}))
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "fingerprint": corpus.fingerprint,
        "evaluated_bytes": corpus.evaluated_bytes,
        "sources": [asdict(one) for one in corpus.facts],
        "overlap": asdict(corpus.overlap),
        "overlap_before": asdict(corpus.overlap_before),
    }
    write_json(folder / "corpus.json", content)


def load_corpus(folder: Path) -> Corpus:
    from safetensors.numpy import load_file

    from homespun.system.json_files import read_json

    content = read_json(folder / "corpus.json", missing=f"{folder}: contains no corpus.")
    arrays = load_file(folder / "tokens.safetensors")
    names = [one["name"] for one in content["sources"]]
    corpus = Corpus(
        tokenizer=Tokenizer.from_file(str(folder / "tokenizer.json")),
        sequences={name: arrays[f"sequences/{name}"] for name in names},
        stretches={name: arrays[f"stretches/{name}"] for name in names},
        held_out={name: arrays[f"held_out/{name}"] for name in names},
        evaluated=arrays["evaluated"],
        evaluated_bytes=content["evaluated_bytes"],
        facts=tuple(SourceFacts(**one) for one in content["sources"]),
        overlap=Overlap(**content["overlap"]),
        overlap_before=Overlap(**content["overlap_before"]),
    )
    if corpus.fingerprint != content["fingerprint"]:
        raise DataError(f"{folder}: the corpus was changed or damaged. Remove the folder to rebuild it.")
    return corpus
