"""A next-word model as one ONNX graph, for suggestions on a device that has onnxruntime and no torch.

    words [batch], state [batch, 2 layers, cells]   -> log_probs [batch, vocabulary + own words], new_state

`words` are numbers of the vocabulary; an own word is read as the unknown word, as in training. The graph has the
spelling of the vocabulary and the convolution over bytes, not a table of embeddings, which would be twice as large as
both. The rows of a user's own words in the output layer are constants, so that the adapter is not part of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from homespun.models.next_word import KERNEL, NO_BYTE, SPELLED, rows_of_lexicon, spell_vocabulary
from homespun.models.onnx_graph import (
    Part,
    log_probs,
    lstm_cell,
    make_model,
    node,
    onnx,
    read_state,
    write_model,
    write_state,
)
from homespun.models.vocabulary import Vocabulary

STEP = "next_word_step.onnx"
QUANTIZED = ("MatMul",)  # nine tenths of the numbers; the rest is the convolution


def write_next_word_onnx(
    folder: Path, vocabulary: Vocabulary, parameters: Mapping[str, Tensor], *, int8: bool = False
) -> None:
    """Write `next_word_step.onnx`. `parameters` are those of a `NextWord`, with or without own words. `int8` stores the
    matrices as 8-bit integers."""
    write_model(step_model(vocabulary, parameters), folder / STEP, int8=QUANTIZED if int8 else ())


def step_model(vocabulary: Vocabulary, parameters: Mapping[str, Tensor]) -> Any:
    weight, bias = output_layer(parameters)
    values = {name: one.detach().numpy() for name, one in parameters.items() if one.is_floating_point()}
    layers, cells = sum(name.startswith("lstm.") and "weight_hh" in name for name in values), weight.shape[1]
    part = _embedding(vocabulary, values, cells=cells) + read_state(layers=layers, cells=cells)
    for number in range(layers):
        given = {one: values[f"lstm.{number}.{one}_l0"] for one in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
        part += lstm_cell(
            "lstm",
            number,
            of_input=given["weight_ih"],
            of_hidden=given["weight_hh"],
            bias=given["bias_ih"] + given["bias_hh"],
        )
    part += write_state(layers=layers, cells=cells)
    part += log_probs(f"input_{layers}", weight=weight.numpy(), bias=bias.numpy())
    state = ("FLOAT", ["batch", 2 * layers, cells])
    return make_model(
        "next_word_step",
        part,
        inputs={"words": ("INT64", ["batch"]), "state": state},
        outputs={"log_probs": ("FLOAT", ["batch", len(weight)]), "new_state": state},
    )


def output_layer(parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Weights [vocabulary + own words, cells] and biases."""
    weight, bias = parameters["output.weight"].detach(), parameters["output.bias"].detach()
    lexicon = parameters.get("own.lexicon")
    if lexicon is None or not len(lexicon):
        return weight, bias
    with torch.no_grad():
        rows = rows_of_lexicon({name: one[None] for name, one in parameters.items()})[0]
    return torch.cat((weight, rows[:, :-1])), torch.cat((bias, rows[:, -1]))


def _embedding(vocabulary: Vocabulary, values: Mapping[str, np.ndarray], *, cells: int) -> Part:
    """`words` -> `input_0`: the maximum of the convolution over the windows within each word."""
    windows = SPELLED - KERNEL + 1
    first = np.zeros((1, windows), dtype=bool)
    first[:, 0] = True
    int64 = onnx().TensorProto.INT64
    return Part(
        [
            node("Gather", ["spelling", "words"], "spelled"),
            node("Cast", ["spelled"], "numbers", to=int64),
            node("Gather", ["bytes.weight", "numbers"], "embedded"),
            node("Transpose", ["embedded"], "channels", perm=[0, 2, 1]),
            node("Conv", ["channels", "convolution.weight", "convolution.bias"], "convolved"),
            node("Slice", ["numbers", "slice_start", "slice_end", "slice_axis"], "last_bytes"),
            node("Equal", ["last_bytes", "no_byte"], "ended"),
            node("Not", ["ended"], "not_ended"),
            node("Or", ["not_ended", "first_window"], "inside"),
            node("Unsqueeze", ["inside", "axis_of_channels"], "inside_channels"),
            node("Where", ["inside_channels", "convolved", "lowest"], "windows"),
            node("ReduceMax", ["windows"], "highest", axes=[2], keepdims=0),
            node("Tanh", ["highest"], "input_0"),
        ],
        {
            "spelling": spell_vocabulary(vocabulary).numpy(),
            "bytes.weight": values["bytes.weight"],
            "convolution.weight": values["convolution.weight"],
            "convolution.bias": values["convolution.bias"],
            "slice_start": np.array([KERNEL - 1]),
            "slice_end": np.array([SPELLED]),
            "slice_axis": np.array([1]),
            "no_byte": np.array(NO_BYTE),
            "first_window": first,
            "axis_of_channels": np.array([1]),
            "lowest": np.array(np.finfo(np.float32).min),
        },
    )
