"""A person's voice in a setting as a PEFT prompt-tuning adapter, to be used wherever the base model is.

The format is two files: `adapter_config.json`, and `adapter_model.safetensors` with one tensor,
`prompt_embeddings` [virtual tokens, width]. They are written plainly; only who loads them needs `peft`.
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
from homespun.personalization.generation import Voice, find_voice
from homespun.runs.run import Run
from homespun.system.disk import draft_folder

CARD = """\
---
library_name: peft
---

# {who}, {setting}

{tokens} before a text, learned with homespun's `{method}`: the product of what this person and this setting prefer.
{whose}

```python
from peft import PeftModel
from transformers import AutoModelForCausalLM

base = {base!r}
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), {folder!r})
```

Give the model an opening without special tokens, as in training. The base model is `{name}`; its weights have the
SHA-256 `{fingerprint}`. With other weights the adapter means nothing.
"""


OWN = (
    "It was made from private parameters. Who has this folder can write like the person, and compare texts with theirs."
)
NOBODYS = "Nothing of one person's own is in it: it is where somebody new begins."


def export_adapter(run: Run, output: Path | str, *, user: str | None = None, context: str | None = None) -> Voice:
    """Write an adapter folder, whole or not at all; without a user, of somebody new."""
    output = Path(output)
    if os.path.lexists(output):
        raise InputError(f"{output}: there is such a file or folder already. Name another.")
    voice = find_voice(run, user=user, context=context)
    trained = [name for name in run.built.partition.names(Role.FEDERATED) if name.startswith("backbone.")]
    if trained:
        raise RunError(
            f"{run.vault.path.parent}: it trained {len(trained)} parameters of the language model itself (its settings "
            "lora or layers), which a prompt-tuning adapter cannot hold. Export from a run without them."
        )
    with draft_folder(output) as draft:
        save_file({"prompt_embeddings": voice.prefix.contiguous()}, draft / "adapter_model.safetensors")
        config = json.dumps(adapter_config(voice.pretrained, tokens=len(voice.prefix)), indent=2)
        (draft / "adapter_config.json").write_text(config + "\n", encoding="utf-8")
        (draft / "README.md").write_text(_card(run, voice, output), encoding="utf-8")
    return voice


def adapter_config(pretrained: Pretrained, *, tokens: int) -> dict[str, Any]:
    """What PEFT has to know of a prompt-tuning adapter."""
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


def _card(run: Run, voice: Voice, output: Path) -> str:
    tokens = len(voice.prefix)
    return CARD.format(
        who=_plain(voice.user or "somebody new"),
        setting=_plain(voice.context or "in any setting"),
        tokens="One vector" if tokens == 1 else f"{tokens} vectors",
        method=run.method.name,
        whose=OWN if voice.own else NOBODYS,
        base=source_of(voice.pretrained.name),
        folder=output.name,
        name=voice.pretrained.name,
        fingerprint=voice.pretrained.fingerprint,
    )


def _plain(name: str) -> str:
    """A name is data: on one line, and no markup."""
    return "".join(sign for sign in " ".join(name.split()) if sign not in "\\`*_[]<>#|")
