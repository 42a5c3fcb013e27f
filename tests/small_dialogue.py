"""A few speakers in short conversations, and reply models small enough to train in a test."""

import json
from dataclasses import replace

import torch

from homespun.models.reply_model import ReplyModel, Sizes, load_reply_model, save_reply_model, untrained
from homespun.models.vocabulary import Vocabulary, pad_rows

SPEAKERS = ("Ada Lovelace", "Bo Derek", "Cy Young")
SIZES = Sizes(word_dim=5, cells=4, layers=2, length=6)
WORDS = Vocabulary(("the", "sea", "is", "blue", "and", "you", "?", ".", "no", "yes", "we", "go"))
SAYINGS = ("the sea is blue.", "is the sea blue?", "no, we go.", "yes.", "and you? we go and go.")


def conversations(scenes=20, speakers=SPEAKERS, host="host"):
    """In each scene the host asks and every speaker replies to the one before; the host never replies."""
    return [
        {"user": user, "text": SAYINGS[(scene * (place + 1) + place) % len(SAYINGS)], "scene": scene}
        for scene in range(scenes)
        for place, user in enumerate((host, *speakers))
    ]


def write_dialogue(path, rows=None):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or conversations()), encoding="utf-8")
    return path


def reply_model(*, direction="replies", vocabulary=WORDS, sizes=SIZES, seed=1, scale=1.0):
    """A model with random weights; a larger `scale` makes it surer of its words."""
    torch.manual_seed(seed)
    network = untrained(vocabulary, sizes).build()
    weights = {name: scale * value.detach().clone() for name, value in network.named_parameters()}
    weights["output.bias"] = torch.randn(len(vocabulary))
    return ReplyModel("made", vocabulary, sizes, direction, "", weights)


PUBLIC = [("is the sea blue?", "the sea is blue"), ("hello", "hello you"), ("the sea", "is the sea")]


def write_reply_model(folder, *, public=None, **values):
    """The folder of such a model, as a path for `base_model`. `public`: held-out pairs to tune a reranker on."""
    pairs = None if public is None else public_pairs(public)
    save_reply_model(folder, reply_model(**values), card="# made for a test\n", pairs=pairs)
    load_reply_model.cache_clear()
    return str(folder)


def public_pairs(pairs):
    sides = [[WORDS.encode(pair[side]) for pair in pairs] for side in (0, 1)]
    lengths = [torch.tensor([len(row) for row in rows], dtype=torch.int32) for rows in sides]
    texts = [torch.tensor(pad_rows(rows, length=SIZES.length), dtype=torch.int32) for rows in sides]
    return {"question": texts[0], "question_length": lengths[0], "reply": texts[1], "length": lengths[1] + 1}


def loaded(folder, **changes):
    return replace(load_reply_model(str(folder)), **changes)


# Two values of one column, and two values and an unknown one of the other
PROFILES = {
    "Ada Lovelace": {"gender": "female", "age": 36},
    "Bo Derek": {"gender": "female", "age": 50},
    "Cy Young": {"gender": "male", "age": None},
}


def with_profiles(rows, profiles=PROFILES):
    """The rows with columns of a profile, which nobody else has."""
    return [{**row, **profiles.get(row["user"], {"gender": None, "age": None})} for row in rows]
