"""A reply model as two ONNX graphs, for a beam search on a device that has onnxruntime and no torch.

    encoder        question [batch, words], length [batch]          -> state [batch, 2 layers, cells]
    decoder step   tokens [batch], state [batch, 2 layers, cells]   -> log_probs [batch, vocabulary], new_state

The state holds the hidden and the cell state of each layer, and one row per hypothesis. The persona is a constant of
the graphs: in the biases of the decoder layers and, if the encoder reads the persona as well, as its first word.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

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

ENCODER, STEP = "encoder.onnx", "decoder_step.onnx"

# Not the encoder's LSTM, which stays float32: it is small next to the words, its errors add up over the steps of a
# question, and its quantized operator is not in the ONNX standard.
QUANTIZED = ("Gather", "MatMul")


def write_onnx(
    folder: Path, parameters: Mapping[str, Tensor], *, persona: Tensor | None, layers: int, int8: bool = False
) -> None:
    """Write `encoder.onnx` and `decoder_step.onnx`. `parameters` are those of a `Seq2Seq`; `persona` [D] is the
    speaker's. `int8` stores matrices as 8-bit integers."""
    values = {name: one.detach().float().cpu().numpy() for name, one in parameters.items()}
    own = None if persona is None else persona.detach().float().cpu().numpy()
    for name, model in (
        (ENCODER, encoder_model(values, own, layers=layers)),
        (STEP, step_model(values, own, layers=layers)),
    ):
        write_model(model, folder / name, int8=QUANTIZED if int8 else ())


def encoder_model(values: Mapping[str, np.ndarray], persona: np.ndarray | None, *, layers: int) -> Any:
    """The graph that reads questions. Rows are padded with any number up to the longest; lengths are at least 1."""
    part = Part(
        [
            node("Gather", ["words.weight", "question"], "words"),
            node("Transpose", ["words"], "word_steps", perm=[1, 0, 2]),
        ],
        {"words.weight": values["words.weight"]},
    )
    steps, length = "word_steps", "length"
    if persona is not None and "to_word.weight" in values:
        part += _persona_before(steps, length, persona @ values["to_word.weight"].T)
        steps, length = "steps_with_persona", "length_with_persona"
    part += Part([node("Cast", [length], "steps_to_read", to=onnx().TensorProto.INT32)])
    for number in range(layers):
        part += _lstm(values, number, inputs=steps)
        steps = f"steps_{number}"
    final = [f"{kind}_{number}" for number in range(layers) for kind in ("hidden", "cell")]
    part += Part([node("Concat", final, "final", axis=0), node("Transpose", ["final"], "state", perm=[1, 0, 2])])
    cells = values["encoder.0.weight_hh_l0"].shape[1]
    return make_model(
        "encoder",
        part,
        inputs={"question": ("INT64", ["batch", "words"]), "length": ("INT64", ["batch"])},
        outputs={"state": ("FLOAT", ["batch", 2 * layers, cells])},
    )


def step_model(values: Mapping[str, np.ndarray], persona: np.ndarray | None, *, layers: int) -> Any:
    """The graph of one decoder step."""
    cells = values["decoder.0.weight_hh_l0"].shape[1]
    part = Part([node("Gather", ["words.weight", "tokens"], "input_0")], {"words.weight": values["words.weight"]})
    part += read_state(layers=layers, cells=cells)
    for number in range(layers):
        part += _decoder_layer(values, number, persona)
    part += write_state(layers=layers, cells=cells)
    part += log_probs(f"input_{layers}", weight=values["output.weight"], bias=values["output.bias"])
    state = ("FLOAT", ["batch", 2 * layers, cells])
    return make_model(
        "decoder_step",
        part,
        inputs={"tokens": ("INT64", ["batch"]), "state": state},
        outputs={"log_probs": ("FLOAT", ["batch", len(values["output.weight"])]), "new_state": state},
    )


# Layers


def _persona_before(steps: str, length: str, word: np.ndarray) -> Part:
    """The persona as a word before the question."""
    return Part(
        [
            node("Shape", [length], "rows"),
            node("Concat", ["one", "rows", "one"], "first_shape", axis=0),
            node("Expand", ["persona_word", "first_shape"], "first_step"),
            node("Concat", ["first_step", steps], "steps_with_persona", axis=0),
            node("Add", [length, "one"], "length_with_persona"),
        ],
        {"one": np.array([1]), "persona_word": word[None, None]},
    )


def _lstm(values: Mapping[str, np.ndarray], number: int, *, inputs: str) -> Part:
    """An encoder layer: its states at all steps, [steps, batch, cells], and the final ones, [1, batch, cells]."""
    given = {one: values[f"encoder.{number}.{one}_l0"] for one in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    weights = {
        f"encoder.{number}.input": _reordered(given["weight_ih"])[None],
        f"encoder.{number}.recurrent": _reordered(given["weight_hh"])[None],
        f"encoder.{number}.bias": np.concatenate((_reordered(given["bias_ih"]), _reordered(given["bias_hh"])))[None],
    }
    read, states = [inputs, *weights, "steps_to_read"], [f"{one}_{number}" for one in ("directions", "hidden", "cell")]
    return Part(
        [
            node("LSTM", read, *states, hidden_size=given["weight_hh"].shape[1]),
            node("Squeeze", [states[0], "axis_of_directions"], f"steps_{number}"),
        ],
        {**weights, "axis_of_directions": np.array([1])},
    )


def _reordered(gates: np.ndarray) -> np.ndarray:
    """The rows of torch's gates (input, forget, cell, output) in ONNX's order (input, output, forget, cell)."""
    i, f, g, o = np.split(gates, 4)
    return np.concatenate((i, o, f, g))


def _decoder_layer(values: Mapping[str, np.ndarray], number: int, persona: np.ndarray | None) -> Part:
    """`input_n`, `hidden_n`, `cell_n` -> `input_{n+1}`, which is the new hidden state, and `new_cell_n`."""
    given = {one: values[f"decoder.{number}.{one}_l0"] for one in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")}
    of_input, bias = given["weight_ih"], given["bias_ih"] + given["bias_hh"]
    width = values[f"encoder.{number}.weight_ih_l0"].shape[1]
    if persona is not None and of_input.shape[1] > width:
        of_input, bias = of_input[:, :width], bias + of_input[:, width:] @ persona
    return lstm_cell("decoder", number, of_input=of_input, of_hidden=given["weight_hh"], bias=bias)
