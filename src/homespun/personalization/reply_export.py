"""Exports a user's reply model as a folder that works without the run.

FOLDER/model.safetensors    the parameters, named as in `Seq2Seq`, and the user's persona as `persona.embedding`
FOLDER/config.json          sizes, special words, user, method and base model
FOLDER/words.txt            the vocabulary, one word per line; the first word has number 4
FOLDER/README.md            the card: how to use it, and whether it is private
FOLDER/encoder.onnx         with `onnx`: reads questions
FOLDER/decoder_step.onnx    with `onnx`: one step of a reply, for a beam search with onnxruntime alone

Personas of other users are never part of it, even if the run has a table of all of them. A profile is in the persona,
not as values.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from homespun.core.errors import InputError, RunError
from homespun.models.onnx_graph import require_onnx
from homespun.models.reply_decoder import ReplyDecoder, persona_readers
from homespun.models.reply_model import ReplyModel
from homespun.models.reply_onnx import write_onnx
from homespun.models.vocabulary import BEGIN, END, PADDING, SPECIAL, UNKNOWN
from homespun.personalization.adapter import plain_name
from homespun.personalization.replies import Replier, Speaker, find_replier
from homespun.runs.run import Run
from homespun.system.disk import draft_folder

PERSONA = "persona.embedding"

PERSONAL_NOTE = (
    "**Keep it private.** It contains private parameters of this user. Anyone who has this folder can imitate how the "
    "user replies."
)
GENERIC_NOTE = "It contains no private parameters of any user: it is the starting point of a new user."

CARD = """\
# How {who} replies

A model that replies to a text, trained with homespun's `{method}`. {whose}

It reads the first {length} words of a text, in lower case and with punctuation marks as words: `what's up ?`. The word
in line n of `words.txt` has number n + {before}. The other numbers are {padding} for padding, {begin} for the begin of
a reply, {end} for its end and {unknown} for an unknown word. Do not choose {banned} when you search for replies.

With homespun:

```python
from pathlib import Path

from homespun.decoding.beam import beam_search
from homespun.models.reply_decoder import ReplyDecoder
from homespun.models.vocabulary import Vocabulary
from safetensors.torch import load_file

parameters = load_file("model.safetensors")
vocabulary = Vocabulary.from_lines(Path("words.txt").read_text(encoding="utf-8"))
decoder = ReplyDecoder(parameters, layers={layers})

question = vocabulary.encode("What are you doing?")[:{length}]
state = decoder.start([question], {persona})
(replies,) = beam_search(decoder, state, beam=20, n_best=5, max_length={length})
for reply in replies:
    print(f"{{reply.log_prob:.2f}} {{vocabulary.decode(reply.tokens)}}")
```
{onnx}
The base model has the SHA-256 `{fingerprint}`.
"""

ONNX_CARD = """
With onnxruntime alone, here the likeliest word at each step:

```python
import numpy as np
import onnxruntime

words = [""] * {before_first} + open("words.txt", encoding="utf-8").read().splitlines()
number = {{word: place for place, word in enumerate(words)}}
encoder = onnxruntime.InferenceSession("encoder.onnx")
decoder = onnxruntime.InferenceSession("decoder_step.onnx")

question = [number.get(word, {unknown}) for word in "what are you doing ?".split()][:{length}]
(state,) = encoder.run(None, {{"question": np.array([question]), "length": np.array([len(question)])}})
reply, token = [], {begin}
while len(reply) < {length}:
    log_probs, state = decoder.run(None, {{"tokens": np.array([token]), "state": state}})
    log_probs[:, {banned} + ([] if reply else [{end}])] = -np.inf
    token = int(log_probs[0].argmax())
    if token == {end}:
        break
    reply.append(words[token])
print(" ".join(reply))
```

| file | inputs | outputs |
|---|---|---|
| `encoder.onnx` | `question` int64 [batch, words], padded; `length` int64 [batch] | `state` float32 [batch, {state}] |
| `decoder_step.onnx` | `tokens` int64 [batch]; `state` | `log_probs` float32 [batch, {vocabulary}]; `new_state` |

For a beam search, give each hypothesis a row, and take the rows of `new_state` whose hypotheses continue. The persona
is built into the graphs and is not an input. {weights}
"""


@dataclass(frozen=True)
class ExportedReplyModel:
    """An exported folder."""

    folder: Path
    user: str | None  # None: a new user
    personalized: bool  # False: the run has no parameters of this user, so that it is a new user's model
    private: bool  # whether it contains private parameters of the user
    file_bytes: Mapping[str, int]  # the size of each file


def export_reply_model(
    run: Run, output: Path | str, *, user: str | None = None, onnx: bool = False, int8: bool = False
) -> ExportedReplyModel:
    """Write the reply model of a user to a new folder; all of its files or none.

    Args:
        run: A run of a dialogue method, for instance `fednlg`.
        output: The new folder. Only its owner can read it.
        user: A name or an unambiguous part of it. Without one, the model is that of a new user.
        onnx: Write `encoder.onnx` and `decoder_step.onnx` too. Needs the extra `onnx`.
        int8: Store the matrices in the ONNX files as 8-bit integers: about a third of the size, less exact.

    Example:
        >>> rows = [{"user": who, "text": text, "scene": 1} for who, text in (("ada", "the people"), ("bo", "the law"))]
        >>> with train("fednlg", load(4 * rows), base_model="untrained", rounds=1, workers=0) as run:
        ...     sorted(export_reply_model(run, "bo", user="bo").file_bytes)
        ['README.md', 'config.json', 'model.safetensors', 'words.txt']
    """
    output = Path(output)
    if os.path.lexists(output):
        raise InputError(f"{output}: already exists. Choose another path.")
    if int8 and not onnx:
        raise InputError("int8: it applies to ONNX files only. Set onnx as well.")
    if onnx:
        require_onnx()
    replier = find_replier(run, reranked=False)
    _ = replier.base  # raises if there is none
    speaker = replier.speaker(user)
    parameters = _parameters(replier, speaker)
    private = speaker.own
    config = reply_config(replier, speaker, private=private, onnx=("int8" if int8 else "float32") if onnx else None)
    with draft_folder(output) as draft:
        save_file(parameters, draft / "model.safetensors")
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        (draft / "words.txt").write_text(replier.vocabulary.to_lines(), encoding="utf-8")
        (draft / "README.md").write_text(_card(config), encoding="utf-8")
        if onnx:
            write_onnx(draft, parameters, persona=speaker.persona, layers=replier.base.sizes.layers, int8=int8)
        file_bytes = {path.name: path.stat().st_size for path in sorted(draft.iterdir())}
    return ExportedReplyModel(output, speaker.user, speaker.personalized, private, file_bytes)


def _parameters(replier: Replier, speaker: Speaker) -> dict[str, Tensor]:
    """The parameters of a `Seq2Seq` with one persona. Raises if the run's network has others."""
    run, persona = replier.run, speaker.persona
    shared = _decoder(speaker).parameters.items()
    found = {name: one for name, one in shared if not name.startswith(("persona.", "profile."))}
    own = {} if persona is None else {PERSONA: persona}
    expected = _shapes(replier.base, persona, found)
    joined = {name: one.detach().contiguous().clone() for name, one in {**found, **own}.items()}
    wrong = sorted(
        name for name in expected.keys() | joined.keys()
        if name not in joined or expected.get(name) != tuple(joined[name].shape)
    )  # fmt: skip
    if wrong:
        raise RunError(
            f"{run.vault.path.parent}: {run.method.name} changes the network of the reply model "
            f"({', '.join(wrong[:4])}), so it cannot be exported. Export from a run of fednlg."
        )
    return joined


def _decoder(speaker: Speaker) -> ReplyDecoder:
    assert isinstance(speaker.decoder, ReplyDecoder)  # that of a `ReplyModel`
    return speaker.decoder


def _shapes(base: ReplyModel, persona: Tensor | None, found: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shapes of a `Seq2Seq` whose persona is read where that of `found` is."""
    if persona is None:
        network = base.build()
    else:
        network = base.build(
            persona="private",
            persona_dim=len(persona),
            readers=persona_readers(found, layers=base.sizes.layers),
            in_question="to_word.weight" in found,
        )
    return {name: tuple(one.shape) for name, one in network.named_parameters()}


def reply_config(replier: Replier, speaker: Speaker, *, private: bool, onnx: str | None) -> dict[str, Any]:
    """The `config.json` of an exported reply model. `onnx` is the type of the weights in its ONNX files."""
    run, persona, decoder = replier.run, speaker.persona, _decoder(speaker)
    kind = "none" if persona is None else "table" if "persona.table" in run.built.partition.roles else "private"
    return {
        "kind": "homespun reply model of a user",
        "user": speaker.user,
        "private": private,
        "method": run.method.name,
        "rounds": run.state.round,
        "sizes": replier.base.sizes.model_dump(),
        "vocabulary": len(replier.vocabulary),
        "special": {"padding": PADDING, "begin": BEGIN, "end": END, "unknown": UNKNOWN},
        "banned": list(ReplyDecoder.banned),
        "persona": {
            "kind": kind,
            "dim": 0 if persona is None else len(persona),
            "layers": persona_readers(decoder.parameters, layers=decoder.layers),
            "in_question": persona is not None and "to_word.weight" in decoder.parameters,
        },
        "base_model_sha256": replier.base.fingerprint,
        "onnx": onnx,
    }


def _card(config: Mapping[str, Any]) -> str:
    sizes, special = config["sizes"], config["special"]
    onnx = ""
    if config["onnx"]:
        rounded = "Matrices are 8-bit integers: log probabilities differ a little from those of `model.safetensors`."
        onnx = ONNX_CARD.format(
            **special,
            before_first=SPECIAL,
            banned=config["banned"],
            length=sizes["length"],
            state=f"{2 * sizes['layers']}, {sizes['cells']}",
            vocabulary=config["vocabulary"],
            weights=rounded if config["onnx"] == "int8" else "",
        ).replace(" \n", "\n")
    return CARD.format(
        **special,
        who=plain_name(config["user"] or "a new user"),
        method=config["method"],
        whose=PERSONAL_NOTE if config["private"] else GENERIC_NOTE,
        length=sizes["length"],
        layers=sizes["layers"],
        vocabulary=config["vocabulary"],
        before=SPECIAL - 1,
        banned=", ".join(map(str, config["banned"])),
        persona="None" if config["persona"]["kind"] == "none" else f'parameters["{PERSONA}"][None]',
        onnx=onnx,
        fingerprint=config["base_model_sha256"],
    )
