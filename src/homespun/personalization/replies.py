"""Reply to a text as a user would.

    reply(run, "Your love confuses me.", user="sheldon", n=5)

The run's model with the user's persona searches for likely replies R to the text Q (equation 6 of FedNLG); in a run of
FedPerC the persona is the user's prefix (personalization/reply_writers.py). If the run has a reranker, they are ordered
by equation 7:

    log p(R|Q, i) + lambda log p(Q|R) + gamma |R|

Nothing is uploaded, and the run does not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor

from homespun.core.errors import InputError, RunError
from homespun.core.method import Artefact
from homespun.core.settings import Settings, parse
from homespun.core.tree import Tree
from homespun.decoding.beam import beam_search
from homespun.decoding.diverse import diverse_beam_search
from homespun.decoding.guided import GuidedDecoder, ReplyingDecoder
from homespun.decoding.hypotheses import Hypothesis
from homespun.decoding.protocol import Decoder, State
from homespun.decoding.sampling import sample
from homespun.models.reply_model import ReplyModel, load_reply_model
from homespun.models.seq2seq import Seq2Seq
from homespun.models.vocabulary import Vocabulary
from homespun.personalization.generation import match_user
from homespun.personalization.profiles import Profile
from homespun.personalization.reply_writers import ReadPrompt, TokenWriter, WordWriter, Writer
from homespun.personalization.reranking import Reranker, load_reranker
from homespun.runs.run import Run
from homespun.system.machine import cpu_cores

DEFAULT_BEAM = 200  # of the paper; a smaller vocabulary lowers it


class Search(Settings):
    """How replies are searched for."""

    decode: Literal["beam", "greedy", "sample", "diverse"] = "beam"
    """beam: the likeliest replies; greedy: the likeliest word at each step; sample: random draws; diverse: beams in
    groups that avoid each other's words."""
    beam: PositiveInt = DEFAULT_BEAM
    """Hypotheses that a beam search keeps, at most as many as the vocabulary has words. A multiple of `groups` with
    decode = diverse."""
    max_words: PositiveInt = 20
    """Maximum number of words of a reply, or of tokens if a language model writes it."""
    groups: PositiveInt = 5
    """Groups of diverse beams."""
    diversity: NonNegativeFloat = 0.5
    """Penalty for a word that an earlier group uses at the same step, for diverse beams."""
    temperature: NonNegativeFloat = 1.0
    """Sampling temperature: below 1 favours likely words."""
    top_k: NonNegativeInt = 0
    """Sample from the k likeliest words. 0: from all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample from the likeliest words whose total probability reaches this value."""
    seed: NonNegativeInt = 0
    """The same seed gives the same samples."""
    persona_strength: NonNegativeFloat = 1.0
    """Factor on what the user's persona changes of the logits. 1: the model as it was trained; above 1: an exaggerated
    persona; 0: nobody's, which is a persona of zeros or, with a language model, a new user's prefix."""

    @model_validator(mode="after")
    def _check_groups(self) -> Search:
        if self.decode == "diverse" and self.beam % self.groups:
            below = self.beam // self.groups * self.groups
            fitting = f"{below} or {below + self.groups}" if below else str(self.groups)
            raise ValueError(f"beam: {self.beam} hypotheses make no {self.groups} equal groups. Set it to {fitting}")
        return self


@dataclass(frozen=True)
class Reply:
    """A candidate reply and its scores."""

    text: str
    log_prob: float  # log p(R|Q, i)
    words: int  # |R|
    rank: int  # by log_prob alone, from 1
    log_prob_of_prompt: float | None = None  # log p(Q|R); None without a reranker
    score: float = 0.0  # equation 7, or log_prob without a reranker
    tokens: tuple[int, ...] = field(default=(), repr=False)


class BestReply(NamedTuple):
    """The best reply to a prompt."""

    likeliest: str
    reranked: str | None  # None without a reranker


@dataclass(frozen=True, repr=False)
class Speaker:
    """A user's model: the shared decoder with a persona."""

    user: str | None  # None: a new user
    decoder: ReplyingDecoder
    persona: Tensor | None
    own: bool = False  # whether there are parameters of this user alone
    personalized: bool = True  # False: the run has none of a user it should have, so that it is a new user's model

    def __repr__(self) -> str:
        return f"<Speaker {self.user!r}>"


@dataclass(frozen=True, repr=False)
class Replier:
    """The reply model of a run, for any of its users."""

    run: Run
    writer: Writer
    reranker: Reranker | None = None

    @property
    def base(self) -> ReplyModel:
        """The pre-trained reply model. Raises if a language model writes the replies."""
        if isinstance(self.writer, WordWriter):
            return self.writer.base
        raise RunError(
            f"{self.run.vault.path.parent}: a language model writes the replies of this run. Reranking and export are "
            "for runs of fednlg."
        )

    @property
    def vocabulary(self) -> Vocabulary:
        return self.base.vocabulary

    @cached_property
    def _shared(self) -> ReplyingDecoder:
        return self.writer.decoder({})

    def speaker(self, user: str | None) -> Speaker:
        """The model of a user, given their name or a part of it; without a name, a new user's."""
        run, broadcast = self.run, self.run.state.broadcast()
        name = None if user is None else match_user(run, user)
        kept = {} if name is None else run.clients.stored_private([name])
        private = next(iter(kept.values()), None) or run.clients.new_private(name or "", broadcast)
        in_table = name is not None and "author" in run.method.model.keys.values()
        expected = bool(private) or run.settings.final_personalization
        own = bool(kept) or in_table
        return self.speaker_with(private, user=name, own=own, personalized=own or not expected or name is None)

    def speaker_with(
        self,
        private: Tree,
        *,
        user: str | None,
        profile: Profile | None = None,
        own: bool = True,
        personalized: bool = True,
    ) -> Speaker:
        """The model with these private parameters. Without a profile, it is the user's as the run knows it."""
        shared_only = not private.keys() - self.writer.personal
        decoder = self._shared if shared_only else self.writer.decoder(private)
        return Speaker(user, decoder, self.writer.persona(user, private, profile), own, personalized)

    def read(self, prompt: str) -> ReadPrompt:
        """A prompt as word numbers. Raises if there is nothing to read."""
        if not isinstance(prompt, str):
            raise InputError(f"prompt: {prompt!r} is not a text.")
        return self.writer.read(prompt)

    @property
    def reranker_is_outdated(self) -> bool:
        """Whether the run was trained further after its reranker was tuned."""
        return self.reranker is not None and self.reranker.round != self.run.state.round

    def search(
        self, prompts: Sequence[Sequence[int]], speakers: Sequence[Speaker], search: Search, *, n: int
    ) -> list[list[Hypothesis]]:
        """The n best replies to each prompt by its speaker, by log probability. Prompts of speakers with the same
        shared parameters are searched together."""
        found: dict[int, list[Hypothesis]] = {}
        for decoder in {id(one.decoder): one.decoder for one in speakers}.values():
            rows = [row for row, one in enumerate(speakers) if one.decoder is decoder]
            personas = [speakers[row].persona for row in rows]
            stacked = torch.stack([one for one in personas if one is not None]) if personas[0] is not None else None
            used = decoder if search.persona_strength == 1 else self._guided(decoder, search.persona_strength)
            state = used.start([prompts[row] for row in rows], stacked)
            most = min(search.max_words, self.writer.longest or search.max_words)
            found |= dict(zip(rows, _search(used, state, search, n=n, max_length=most), strict=True))
        return [found[row] for row in range(len(prompts))]

    def can_exaggerate(self, speaker: Speaker) -> bool:
        """Whether all that is personal is a persona, which the shared decoder reads."""
        return speaker.persona is not None and speaker.decoder is self._shared

    def _guided(self, decoder: ReplyingDecoder, strength: float) -> GuidedDecoder:
        """The decoder with exaggerated personas: away from the neutral one."""
        neutral = self.writer.neutral() if decoder is self._shared else None
        if neutral is None:
            raise InputError(
                f"persona_strength: {strength:g}, but the personal part of this run's models is not a persona that the "
                "decoder reads. Leave it at 1."
            )
        return GuidedDecoder(decoder, neutral, strength)

    def reply(self, prompt: str, user: str | None = None, *, n: int = 5, search: Search | None = None) -> list[Reply]:
        """The n best replies of a user to a prompt."""
        (replies,) = self.reply_as(prompt, [self.speaker(user)], n=n, search=search)
        return replies

    def reply_as(
        self,
        prompt: str,
        speakers: Sequence[Speaker],
        *,
        n: int = 5,
        search: Search | Mapping[str, Any] | None = None,
    ) -> list[list[Reply]]:
        """The n best replies of each speaker to one prompt. `search` may be a mapping of its fields."""
        search = search if isinstance(search, Search) else parse(Search, search or {}, where="search")
        if n < 1:
            raise InputError(f"n: {n} replies. Ask for at least one.")
        if isinstance(self.writer, WordWriter) and search.beam > max(len(self.vocabulary), DEFAULT_BEAM):
            raise InputError(f"beam: {search.beam:,}, but the vocabulary has {len(self.vocabulary):,} words. Lower it.")
        read = self.read(prompt)
        # Reranking may find the best reply far down the list.
        listed = max(n, search.beam) if self.reranker and search.decode in ("beam", "diverse") else n
        lists = self.search([read.tokens] * len(speakers), speakers, search, n=listed)
        return [self._ranked(read, one)[:n] for one in lists]

    def best_replies(self, asked: Sequence[tuple[str, Speaker]], *, search: Search) -> list[BestReply]:
        """The best reply to each prompt by its speaker, whatever the prompt is, before and after reranking."""
        prompts = [self.writer.read_any(prompt) for prompt, _ in asked]
        reranked = self.reranker is not None and search.decode == "beam"
        n = search.beam if reranked else 1
        lists = self.search([one.tokens for one in prompts], [speaker for _, speaker in asked], search, n=n)
        best = []
        for prompt, found in zip(prompts, lists, strict=True):
            (likeliest, _), again = self.writer.write(found[0].tokens), None
            if reranked:
                again = self._ranked(prompt, found)[0].text
            best.append(BestReply(likeliest, again))
        return best

    def _ranked(self, prompt: ReadPrompt, found: Sequence[Hypothesis]) -> list[Reply]:
        found = sorted(found, key=lambda one: -one.log_prob)  # samples are in the order in which they were drawn
        reverse = None if self.reranker is None else self.reranker.log_probs([prompt.tokens] * len(found), found)
        replies = []
        for rank, one in enumerate(found, start=1):
            of_prompt = None if reverse is None else float(reverse[rank - 1])
            score = one.log_prob
            if self.reranker is not None and of_prompt is not None:
                score += self.reranker.lam * of_prompt + self.reranker.gamma * len(one.tokens)
            text, size = self.writer.write(one.tokens)
            replies.append(Reply(text, one.log_prob, size, rank, of_prompt, score, one.tokens))
        return sorted(replies, key=lambda one: (-one.score, one.rank))


def _search(decoder: Decoder, state: State, search: Search, *, n: int, max_length: int) -> list[list[Hypothesis]]:
    cores, length, words = cpu_cores(), max_length, decoder.vocabulary
    if search.decode == "beam":
        return beam_search(decoder, state, beam=min(search.beam, words), n_best=n, max_length=length, threads=cores)
    if search.decode == "diverse":
        found = diverse_beam_search(
            decoder,
            state,
            beam=min(search.beam, words // search.groups * search.groups),
            groups=search.groups,
            diversity=search.diversity,
            max_length=length,
            threads=cores,
        )
        return [one[:n] for one in found]
    greedy = search.decode == "greedy" or search.temperature == 0
    return sample(
        decoder,
        state,
        samples=1 if greedy else n,
        max_length=length,
        temperature=0.0 if greedy else search.temperature,
        top_k=search.top_k,
        top_p=search.top_p,
        seed=search.seed,
        threads=cores,
    )


def find_reply_base(run: Run) -> Artefact | None:
    """The base model of a run that replies to texts; None for other runs."""
    base = next((one for one in run.method.artefacts if one.kind == "reply model"), None)
    # pFedMe and PFedKM wrap the network, whose parameters then have other names.
    return base if "reply" in run.scoring.offers and isinstance(run.built.model, Seq2Seq) else None


def find_replier(run: Run, *, reranked: bool = True, context: str | None = None) -> Replier:
    """The reply model of a run, with its reranker if it has one and `reranked` is set. `context` is for runs of a
    language model: the name of one, or a part of it."""
    base = find_reply_base(run)
    language_model = run.method.base_model
    if language_model is not None and "reply" in run.scoring.offers and hasattr(run.built.model, "prefix"):
        return Replier(run, TokenWriter(run, language_model.name, context))
    if base is None:
        remedy = "Train a method that does: `homespun train fednlg`."
        if "generate" in run.scoring.offers:
            remedy = "To continue a text, use `homespun generate`."
        raise RunError(f"{run.vault.path.parent}: {run.method.name} does not reply to texts. {remedy}")
    if context is not None:
        raise InputError(f"context: replies of {run.method.name} have none. Leave it out.")
    loaded = load_reply_model(base.name)
    return Replier(run, WordWriter(run, loaded), load_reranker(run, loaded) if reranked else None)


def reply(
    run: Run, prompt: str, *, user: str | None = None, context: str | None = None, n: int = 5, **search: Any
) -> list[Reply]:
    """The n best replies of a user to a text. `user` is a name or an unambiguous part of it; without one, the replies
    are those of a new user. `context` is one of the run's, for methods that have them. `search` are the fields of
    `Search`, for instance `beam=20`.

    Example:
        >>> rows = [{"user": who, "text": text, "scene": 1} for who, text in (("ada", "the people"), ("bo", "the law"))]
        >>> with train("fednlg", load(4 * rows), base_model="untrained", rounds=1, workers=0) as run:
        ...     len(reply(run, "the people", user="bo", n=2, beam=4, max_words=3))
        2
    """
    parsed = parse(Search, search, where="search")  # before anything is loaded
    return find_replier(run, context=context).reply(prompt, user, n=n, search=parsed)
