"""Exports a user's language model in a context as a PEFT prompt-tuning adapter for the base model.

The format is two files: `adapter_config.json`, and `adapter_model.safetensors` with one tensor,
`prompt_embeddings` [virtual tokens, width]. Writing them does not need `peft`; loading them does.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from homespun.core.errors import InputError, RunError
from homespun.core.roles import Role
from homespun.models.pretrained import Pretrained, source_of
from homespun.personalization.generation import PersonalLanguageModel, find_personal_model
from homespun.runs.run import Run
from homespun.system.disk import draft_folder

CARD = """\
---
library_name: peft
---

# {who}, {context}

{tokens} before a text, learned with homespun's `{method}` for this user and this context.
{whose}

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = {base!r}
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), {folder!r})
```

Prompt the model without special tokens, as in training. The base model is `{name}`; its weights have the
SHA-256 `{fingerprint}`. The adapter does not work with other weights.
"""


PERSONAL_NOTE = (
    "It was made from private parameters. Anyone who has this folder can imitate the user's writing and recognize it."
)
GENERIC_NOTE = "It contains nothing of any single user: it is the starting point of a new user."


def export_adapter(
    run: Run, output: Path | str, *, user: str | None = None, context: str | None = None
) -> PersonalLanguageModel:
    """Write an adapter folder atomically; without a user, the adapter of a new user."""
    output = Path(output)
    if os.path.lexists(output):
        raise InputError(f"{output}: already exists. Choose another path.")
    model = find_personal_model(run, user=user, context=context)
    trained = [name for name in run.built.partition.names(Role.FEDERATED) if name.startswith("backbone.")]
    if trained:
        raise RunError(
            f"{run.vault.path.parent}: the run trained {len(trained)} parameters of the language model itself "
            "(settings lora or layers), which a prompt-tuning adapter cannot hold. Export from a run without them."
        )
    with draft_folder(output) as draft:
        save_file({"prompt_embeddings": model.prefix.contiguous()}, draft / "adapter_model.safetensors")
        config = json.dumps(adapter_config(model.pretrained, tokens=len(model.prefix)), indent=2)
        (draft / "adapter_config.json").write_text(config + "\n", encoding="utf-8")
        (draft / "README.md").write_text(_card(run, model, output), encoding="utf-8")
    return model


def adapter_config(pretrained: Pretrained, *, tokens: int) -> dict[str, Any]:
    """The `adapter_config.json` of a PEFT prompt-tuning adapter."""
    config = pretrained.model.config
    return {
        "peft_type": "PROMPT_TUNING",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": source_of(pretrained.name),
        "inference_mode": True,
        "num_virtual_tokens": tokens,
        "token_dim": pretrained.width,
        "num_transformer_submodules": 1,
        "num_attention_heads": config.num_attention_heads,
        "num_layers": config.num_hidden_layers,
        "prompt_tuning_init": "RANDOM",
    }


def _card(run: Run, model: PersonalLanguageModel, output: Path) -> str:
    tokens = len(model.prefix)
    return CARD.format(
        who=plain_name(model.user or "A new user"),
        context=plain_name(model.context or "in any context"),
        tokens="One vector" if tokens == 1 else f"{tokens} vectors",
        method=run.method.name,
        whose=PERSONAL_NOTE if model.personalized else GENERIC_NOTE,
        base=source_of(model.pretrained.name),
        folder=output.name,
        name=model.pretrained.name,
        fingerprint=model.pretrained.fingerprint,
    )


def plain_name(name: str) -> str:
    """Put a name on one line and remove markup characters."""
    return "".join(sign for sign in " ".join(name.split()) if sign not in "\\`*_[]<>#|")
