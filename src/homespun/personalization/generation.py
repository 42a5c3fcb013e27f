"""Continue a text in a person's voice and a setting.

    generate(run, "We must", user="kennedy", context="spoken", samples=3)

The prefix that a run learned for the person and the setting stands before the opening; what follows is sampled
from the frozen language model, token by token. Nothing is uploaded, nothing is changed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from unicodedata import category

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn

from homespun.core import seeds
from homespun.core.errors import InputError, RunError
from homespun.core.personalize import Generated
from homespun.core.settings import Settings, parse
from homespun.core.threads import one_thread
from homespun.core.tree import Tree
from homespun.data.federation import Examples
from homespun.data.sentences import sentence_end
from homespun.data.user_names import match_name
from homespun.models.pretrained import Pretrained, load_pretrained
from homespun.runs.run import Run


class Sampling(Settings):
    """How a continuation is drawn."""

    samples: PositiveInt = 1
    """Continuations to draw."""
    max_tokens: PositiveInt = 40
    """Tokens of a continuation at most."""
    temperature: NonNegativeFloat = 1.0
    """Below 1 likelier tokens, above 1 less likely ones. 0: always the likeliest."""
    top_k: NonNegativeInt = 0
    """Draw from this many of the likeliest tokens. 0: from all."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Draw from the likeliest tokens that together have this probability."""
    seed: NonNegativeInt = 0
    """The same seed gives the same texts."""
    until: Literal["sentence", "end"] = "sentence"
    """Stop at the end of the sentence, or only where the model ends the text."""

    @model_validator(mode="after")
    def _one_likeliest(self) -> Sampling:
        if self.temperature == 0 and self.samples > 1:
            raise ValueError("temperature 0 always gives the same text: ask for one sample")
        return self


@dataclass(frozen=True)
class Voice:
    """A person in a setting: the virtual tokens before their words, and the model that reads them."""

    user: str | None  # None: somebody new
    context: str | None  # None: the run knows no settings, or makes no difference between them
    prefix: Tensor  # [tokens, width]
    backbone: Any
    pretrained: Pretrained
    own: bool = True  # False: nothing is kept of this person, so that it is the voice of somebody new


def generate(
    run: Run, opening: str = "", *, user: str | None = None, context: str | None = None, **sampling: Any
) -> list[str]:
    """The opening, continued as often as asked for. Without a user it is somebody new: where training starts them.

    `sampling` are the fields of `Sampling`. A part of a name will do where it says who is meant.
    """
    return continued(find_voice(run, user=user, context=context), opening, **sampling)


def continued(voice: Voice, opening: str = "", **sampling: Any) -> list[str]:
    """The opening in this voice, as often as asked for."""
    settings = parse(Sampling, sampling, where="sampling")
    return [opening + some for some in continuations(voice, opening, settings)]


def find_voice(run: Run, *, user: str | None = None, context: str | None = None) -> Voice:
    """The voice of a user in a context of this run; it need not be one they ever used."""
    language_model_of(run)
    name = None if user is None else find_person(run, user)
    return replace(voice_of(run, private_of(run, name), user=name, context=context), own=_is_known(run, name))


def _is_known(run: Run, user: str | None) -> bool:
    """Whether there is anything of this person's own: in the vault, or to be read off their text."""
    if user is None:
        return False
    read_off = run.method.personalize.generates and user in run.federation.users
    return read_off or bool(run.clients.kept([user]))


@one_thread()
def voice_of(run: Run, private: Tree, *, user: str | None, context: str | None = None) -> Voice:
    """The voice that these private parameters have in a context of this run."""
    pretrained, position = language_model_of(run), find_context(run, context)
    model: Any = with_parameters(run.built.model, run.built.parameters(run.state.broadcast(), private))
    with torch.no_grad():
        prefix = model.prefix(torch.tensor([position or 0]))[0]
    named = None if position is None else run.federation.contexts[position]
    return Voice(user, named, prefix.detach().clone(), model.backbone, pretrained)


def language_model_of(run: Run) -> Pretrained:
    """The model that a run is built on; a run without one is refused."""
    base = run.method.base_model
    if "generate" not in run.scoring.offers or base is None or not hasattr(run.built.model, "prefix"):
        raise RunError(
            f"{_where(run)}: {run.method.name} learns no prefix before a language model, so it has no voice to write "
            "in. Train one that does, for instance with `homespun train fedperc --data sotu`."
        )
    return load_pretrained(base.name)


def find_person(run: Run, user: str) -> str:
    """The name of a participant, or of somebody personalized, by the name or a part of it."""
    if user in run.federation.users:  # without listing them, who may be many
        return user
    known = dict.fromkeys([*run.federation.users, *run.vault.users()])
    return match_name(user, known, kind="user", where=_where(run))


def find_context(run: Run, context: str | None) -> int | None:
    """The position of a context by its name or a part of it; without a name, of the only one there is."""
    known = run.federation.contexts
    if context is not None:
        if not known:
            raise InputError(f"{_where(run)}: its corpus has no contexts. Leave the context out.")
        return known.index(match_name(context, known, kind="context", where=_where(run)))
    if len(known) > 1 and "context" in run.method.keys.values():
        names = ", ".join(repr(name) for name in known[:8]) + (", ..." if len(known) > 8 else "")
        raise InputError(f"{_where(run)}: there are {len(known)} contexts: {names}. Say which one.")
    return 0 if len(known) == 1 else None


@one_thread()
def private_of(run: Run, user: str | None) -> Tree:
    """What is kept of a user; of somebody new, where they begin.

    A method that generates keeps nothing of its participants: theirs is made from their training text, as in
    evaluation, and a new user's from no text at all.
    """
    broadcast = run.state.broadcast()
    private = run.clients.new_private("", broadcast) if user is None else run.clients.private([user], broadcast)[user]
    users = run.federation.users
    if not isinstance(run.method.personalize, Generated) or (user is not None and user not in users):
        return private
    data = (
        run.method.encode(Examples([]))
        if user is None
        else run.clients.encode(run.federation, users.index(user), "train")
    )
    with torch.no_grad():
        return {**private, **run.method.personalize.generate(run.built.parameters(broadcast, private), data)}


def with_parameters(model: nn.Module, parameters: Tree) -> nn.Module:
    """The model with other parameters; those that are the same are shared, not copied."""
    others = {id(old): nn.Parameter(parameters[name], requires_grad=False) for name, old in model.named_parameters()}
    return copy.deepcopy(model, memo=others)


@one_thread()
def continuations(voice: Voice, opening: str, sampling: Sampling) -> list[str]:
    """What follows the opening, as often as asked for."""
    try:
        opening.encode()
    except UnicodeEncodeError:
        raise InputError("opening: it holds something that is no text in UTF-8.") from None
    ids: list[int] = voice.pretrained.tokenizer(opening, add_special_tokens=False)["input_ids"] if opening else []
    most = voice.pretrained.positions - len(voice.prefix)
    if len(ids) > most:
        raise InputError(
            f"opening: {len(ids)} tokens are more than the {most} that {voice.pretrained.name} can read. Shorten it."
        )
    room = most - len(ids) + 1  # the last token is written, not read
    ends = end_tokens(voice)
    rows: list[list[int]] = [[] for _ in range(sampling.samples)]
    done: dict[int, str] = {}
    for _, drawn in zip(range(min(sampling.max_tokens, room)), draws(voice, ids, sampling), strict=False):
        for place, token in enumerate(drawn):
            if place in done:
                continue
            if token in ends:
                done[place] = _text(voice, ids, rows[place])
                continue
            rows[place].append(token)
            if sampling.until == "sentence":
                text = _text(voice, ids, rows[place])
                end = sentence_end(opening + text, len(opening))
                if end is not None:
                    done[place] = text[: end - len(opening)]
        if len(done) == len(rows):
            break
    return [done[place] if place in done else _text(voice, ids, row) for place, row in enumerate(rows)]


def _text(voice: Voice, before: Sequence[int], new: Sequence[int]) -> str:
    """New tokens as text. They are read beside what they follow: some tokenizers drop the space of a first word."""
    decode = voice.pretrained.tokenizer.decode
    lead, whole = (decode(list(some), skip_special_tokens=True) for some in (before, [*before, *new]))
    text = whole[len(lead) :] if whole.startswith(lead) else decode(list(new), skip_special_tokens=True)
    text = text.rstrip("\ufffd")  # half of a character, cut off
    return "".join(sign for sign in text if category(sign) != "Cc" or sign in "\n\t")  # a terminal obeys the others


def end_tokens(voice: Voice) -> set[int]:
    """The tokens that end a text."""
    config = voice.pretrained.model.generation_config
    known = getattr(config, "eos_token_id", None)
    listed = known if isinstance(known, list) else [known]
    return {int(token) for token in (*listed, voice.pretrained.tokenizer.eos_token_id) if token is not None}


@torch.no_grad()
def draws(voice: Voice, ids: Sequence[int], sampling: Sampling) -> Iterator[list[int]]:
    """One token for every sample, again and again. What was read is remembered and not read again."""
    generators = [seeds.torch_generator(sampling.seed, "sample", place) for place in range(sampling.samples)]
    words = voice.backbone.get_input_embeddings()(torch.tensor([ids], dtype=torch.long))
    start = torch.cat((voice.prefix[None], words), dim=1).expand(sampling.samples, -1, -1)
    read = voice.backbone(inputs_embeds=start, use_cache=True)
    while True:
        tokens = choose(read.logits[:, -1], sampling, generators)
        yield tokens.tolist()
        read = voice.backbone(input_ids=tokens[:, None], past_key_values=read.past_key_values, use_cache=True)


def choose(logits: Tensor, sampling: Sampling, generators: Sequence[torch.Generator]) -> Tensor:
    """A token for each row of logits [samples, vocabulary]; every sample has its own stream of draws."""
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    chances = probabilities(logits, sampling)
    drawn = [torch.multinomial(row, 1, generator=one) for row, one in zip(chances, generators, strict=True)]
    return torch.cat(drawn)


def probabilities(logits: Tensor, sampling: Sampling) -> Tensor:
    """Temperature, then the `top_k` likeliest, then the likeliest that together have `top_p`; at least one stays."""
    # in double precision and with the largest at 0, no temperature is too small
    scores = (logits - logits.amax(dim=-1, keepdim=True)).double() / sampling.temperature
    if 0 < sampling.top_k < scores.shape[-1]:
        fewest = scores.topk(sampling.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < fewest, -torch.inf)
    chances = scores.softmax(dim=-1)
    if sampling.top_p < 1:
        ordered, order = chances.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered  # what the likelier ones have already
        chances = chances.masked_fill((before >= sampling.top_p).gather(-1, order.argsort(dim=-1)), 0.0)
    return chances / chances.sum(dim=-1, keepdim=True)


def _where(run: Run) -> str:
    return str(run.vault.path.parent)
