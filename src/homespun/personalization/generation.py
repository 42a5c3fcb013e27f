"""Generate text as a user in a context.

    generate(run, "We must", user="kennedy", context="spoken", samples=3)

The prefix that a run learned for the user and the context is placed before the prompt. The continuation is sampled from
the frozen language model, token by token. Nothing is uploaded, and the run does not change.
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
from homespun.decoding.sampling import choose_tokens
from homespun.models.pretrained import Pretrained, load_pretrained
from homespun.runs.run import Run


class Sampling(Settings):
    """How continuations are sampled."""

    samples: PositiveInt = 1
    """Number of continuations."""
    max_tokens: PositiveInt = 40
    """Maximum number of tokens of a continuation."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature: below 1 favours likely tokens, above 1 unlikely ones. 0: always the likeliest token."""
    top_k: NonNegativeInt = 0
    """Sample from the k likeliest tokens. 0: from all."""
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    """Sample from the likeliest tokens whose total probability reaches this value."""
    seed: NonNegativeInt = 0
    """The same seed gives the same texts."""
    until: Literal["sentence", "end"] = "sentence"
    """Stop at the end of the sentence, or only at an end-of-text token."""

    @model_validator(mode="after")
    def _check_greedy(self) -> Sampling:
        if self.temperature == 0 and self.samples > 1:
            raise ValueError("temperature 0 always gives the same text: set samples = 1")
        return self


@dataclass(frozen=True)
class PersonalLanguageModel:
    """The language model of one user in one context: a prefix of virtual tokens and the model that reads it."""

    user: str | None  # None: a new user
    context: str | None  # None: the run has no contexts, or does not distinguish them
    prefix: Tensor  # [tokens, width]
    backbone: Any
    pretrained: Pretrained
    personalized: bool = True  # False: the run has no parameters of this user, so that it is a new user's model


def generate(
    run: Run, prompt: str = "", *, user: str | None = None, context: str | None = None, **sampling: Any
) -> list[str]:
    """Continue a prompt as a user in a context; return the prompt with each continuation.

    `user` and `context` are names or unambiguous parts of names. Without a user, the parameters are those of a new
    user. `sampling` are the fields of `Sampling`.

    Example:
        >>> with train("fedperc", load("sotu", since=2000), rounds=1, cohort=1, local_steps=1, workers=0) as run:
        ...     len(generate(run, "We must", user=run.federation.users[0], context="spoken", max_tokens=2))
        1
    """
    return continue_text(find_personal_model(run, user=user, context=context), prompt, **sampling)


def continue_text(model: PersonalLanguageModel, prompt: str = "", **sampling: Any) -> list[str]:
    """The prompt with each continuation by this model."""
    settings = parse(Sampling, sampling, where="sampling")
    return [prompt + some for some in sample_continuations(model, prompt, settings)]


def find_personal_model(run: Run, *, user: str | None = None, context: str | None = None) -> PersonalLanguageModel:
    """The language model of a user in a context of this run, which need not be one that the user has used."""
    require_language_model(run)
    name = None if user is None else match_user(run, user)
    return replace(
        build_personal_model(run, load_private(run, name), user=name, context=context),
        personalized=_is_personalized(run, name),
    )


def _is_personalized(run: Run, user: str | None) -> bool:
    """Whether the user has private parameters: in the vault, or generated from their text."""
    if user is None:
        return False
    generated = run.method.personalize.generates and user in run.federation.users
    return generated or bool(run.clients.stored_private([user]))


@one_thread()
def build_personal_model(
    run: Run, private: Tree, *, user: str | None, context: str | None = None
) -> PersonalLanguageModel:
    """The language model with these private parameters in a context of this run."""
    pretrained, position = require_language_model(run), find_context(run, context)
    network: Any = with_parameters(run.built.model, run.built.parameters(run.state.broadcast(), private))
    with torch.no_grad():
        prefix = network.prefix(torch.tensor([position or 0]))[0]
    named = None if position is None else run.federation.contexts[position]
    return PersonalLanguageModel(user, named, prefix.detach().clone(), network.backbone, pretrained)


def require_language_model(run: Run) -> Pretrained:
    """The pretrained language model of a run. Raises if the method learns no prefix for one."""
    base = run.method.base_model
    if base is not None and "reply" in run.scoring.offers and hasattr(run.built.model, "prefix"):
        raise RunError(
            f"{_where(run)}: this run of {run.method.name} replies to texts and does not continue them. Use `homespun "
            "reply`, or train with reads = utterances."
        )
    if "generate" not in run.scoring.offers or base is None or not hasattr(run.built.model, "prefix"):
        remedy = "Train a method that does, for instance with `homespun train fedperc --data sotu`."
        if "reply" in run.scoring.offers:
            remedy = "To reply to a text, use `homespun reply`."
        raise RunError(
            f"{_where(run)}: {run.method.name} does not personalize a language model, so it cannot continue a text. "
            f"{remedy}"
        )
    return load_pretrained(base.name)


def match_user(run: Run, user: str) -> str:
    """The name of a participant or a personalized user, given the name or a part of it."""
    if user in run.federation.users:  # avoids listing all users
        return user
    known = dict.fromkeys([*run.federation.users, *run.vault.users()])
    return match_name(user, known, kind="user", where=_where(run))


def find_context(run: Run, context: str | None) -> int | None:
    """The index of a context, given its name or a part of it; without a name, the index of the only context."""
    known = run.federation.contexts
    if context is not None:
        if not known:
            raise InputError(f"{_where(run)}: the corpus has no contexts. Leave out the context.")
        return known.index(match_name(context, known, kind="context", where=_where(run)))
    if len(known) > 1 and "context" in run.method.model.keys.values():
        names = ", ".join(repr(name) for name in known[:8]) + (", ..." if len(known) > 8 else "")
        raise InputError(f"{_where(run)}: the run has {len(known)} contexts: {names}. Choose one.")
    return 0 if len(known) == 1 else None


@one_thread()
def load_private(run: Run, user: str | None) -> Tree:
    """The private parameters of a user; without a user, the initial ones of a new user.

    A method with a generator stores none for its participants: they are generated from the training text, as in
    evaluation, and those of a new user from no text.
    """
    broadcast = run.state.broadcast()
    private = run.clients.new_private("", broadcast) if user is None else run.clients.private([user], broadcast)[user]
    users = run.federation.users
    if not isinstance(run.method.personalize, Generated) or (user is not None and user not in users):
        return private
    data = (
        run.method.model.encode(Examples([]))
        if user is None
        else run.clients.encode(run.federation, users.index(user), "train")
    )
    with torch.no_grad():
        return {**private, **run.method.personalize.generate(run.built.parameters(broadcast, private), data)}


def with_parameters(model: nn.Module, parameters: Tree) -> nn.Module:
    """A copy of the model with other parameters, which are shared with the tree, not copied."""
    others = {id(old): nn.Parameter(parameters[name], requires_grad=False) for name, old in model.named_parameters()}
    return copy.deepcopy(model, memo=others)


@one_thread()
def sample_continuations(model: PersonalLanguageModel, prompt: str, sampling: Sampling) -> list[str]:
    """Sample continuations of a prompt."""
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InputError("prompt: not valid UTF-8 text.") from None
    ids: list[int] = model.pretrained.tokenizer(prompt, add_special_tokens=False)["input_ids"] if prompt else []
    most = model.pretrained.positions - len(model.prefix)
    if len(ids) > most:
        raise InputError(f"prompt: {len(ids)} tokens, but {model.pretrained.name} can read at most {most}. Shorten it.")
    room = most - len(ids) + 1  # the last generated token is not read
    ends = end_tokens(model)
    rows: list[list[int]] = [[] for _ in range(sampling.samples)]
    done: dict[int, str] = {}
    for _, drawn in zip(range(min(sampling.max_tokens, room)), draw_tokens(model, ids, sampling), strict=False):
        for place, token in enumerate(drawn):
            if place in done:
                continue
            if token in ends:
                done[place] = _text(model, ids, rows[place])
                continue
            rows[place].append(token)
            if sampling.until == "sentence":
                text = _text(model, ids, rows[place])
                end = sentence_end(prompt + text, len(prompt))
                if end is not None:
                    done[place] = text[: end - len(prompt)]
        if len(done) == len(rows):
            break
    return [done[place] if place in done else _text(model, ids, row) for place, row in enumerate(rows)]


def _text(model: PersonalLanguageModel, before: Sequence[int], new: Sequence[int]) -> str:
    """Decode new tokens together with those before them: some tokenizers drop the space of a first word."""
    decode = model.pretrained.tokenizer.decode
    lead, whole = (decode(list(some), skip_special_tokens=True) for some in (before, [*before, *new]))
    text = whole[len(lead) :] if whole.startswith(lead) else decode(list(new), skip_special_tokens=True)
    text = text.rstrip("\ufffd")  # an incomplete character
    return "".join(sign for sign in text if category(sign) != "Cc" or sign in "\n\t")  # drop control characters


def end_tokens(model: PersonalLanguageModel) -> set[int]:
    """The tokens that end a text."""
    config = model.pretrained.model.generation_config
    known = getattr(config, "eos_token_id", None)
    listed = known if isinstance(known, list) else [known]
    return {int(token) for token in (*listed, model.pretrained.tokenizer.eos_token_id) if token is not None}


@torch.no_grad()
def draw_tokens(model: PersonalLanguageModel, ids: Sequence[int], sampling: Sampling) -> Iterator[list[int]]:
    """Yield the next token of each sample, indefinitely. Past keys and values are cached."""
    generators = [seeds.torch_generator(sampling.seed, "sample", place) for place in range(sampling.samples)]
    words = model.backbone.get_input_embeddings()(torch.tensor([ids], dtype=torch.long))
    start = torch.cat((model.prefix[None], words), dim=1).expand(sampling.samples, -1, -1)
    read = model.backbone(inputs_embeds=start, use_cache=True)
    while True:
        tokens = choose_tokens(read.logits[:, -1], sampling, generators)
        yield tokens.tolist()
        read = model.backbone(input_ids=tokens[:, None], past_key_values=read.past_key_values, use_cache=True)


def _where(run: Run) -> str:
    return str(run.vault.path.parent)
