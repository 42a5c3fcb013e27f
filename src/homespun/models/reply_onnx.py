"""A reply model as two ONNX graphs, for a beam search on a device that has onnxruntime and no torch.

    encoder        question [batch, words], length [batch]          -> state [batch, 2 layers, cells]
    decoder step   tokens [batch], state [batch, 2 layers, cells]   -> log_probs [batch, vocabulary], new_state

The state holds the hidden and the cell state of each layer, and one row per hypothesis. The persona is a constant of
the graphs: in the biases of the decoder layers and, if the encoder reads the persona as well, as its first word.

The graphs are written operator by operator: they have few, and the file then does not depend on a version of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module, util
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from homespun.core.errors import InputError

EXTRA = "pip install 'homespun[onnx]'"
OPSET, IR_VERSION = 17, 8  # read by every onnxruntime since 1.12, in browsers and on phones as well
ENCODER, STEP = "encoder.onnx", "decoder_step.onnx"

Constants = dict[str, np.ndarray]
Nodes = list[Any]


@dataclass(frozen=True)
class Part:
    """A part of a graph."""

    nodes: Nodes
    constants: Constants = field(default_factory=dict)

    def __add__(self, other: Part) -> Part:
        return Part([*self.nodes, *other.nodes], {**self.constants, **other.constants})


def require_onnx() -> None:
    """Raise unless the optional packages are installed."""
    absent = [name for name in ("onnx", "onnxruntime") if util.find_spec(name) is None]
    if absent:
        raise InputError(f"an ONNX export needs {' and '.join(absent)}. Install the extra onnx: {EXTRA}")


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
        if int8:
            _write_int8(model, folder / name)
        else:
            (folder / name).write_bytes(model.SerializeToString())


def encoder_model(values: Mapping[str, np.ndarray], persona: np.ndarray | None, *, layers: int) -> Any:
    """The graph that reads questions. Rows are padded with any number up to the longest; lengths are at least 1."""
    part = Part(
        [
            _node("Gather", ["words.weight", "question"], "words"),
            _node("Transpose", ["words"], "word_steps", perm=[1, 0, 2]),
        ],
        {"words.weight": values["words.weight"]},
    )
    steps, length = "word_steps", "length"
    if persona is not None and "to_word.weight" in values:
        part += _persona_before(steps, length, persona @ values["to_word.weight"].T)
        steps, length = "steps_with_persona", "length_with_persona"
    part += Part([_node("Cast", [length], "steps_to_read", to=_onnx().TensorProto.INT32)])
    for number in range(layers):
        part += _lstm(values, number, inputs=steps)
        steps = f"steps_{number}"
    final = [f"{kind}_{number}" for number in range(layers) for kind in ("hidden", "cell")]
    part += Part([_node("Concat", final, "final", axis=0), _node("Transpose", ["final"], "state", perm=[1, 0, 2])])
    cells = values["encoder.0.weight_hh_l0"].shape[1]
    return _model(
        "encoder",
        part,
        inputs={"question": ("INT64", ["batch", "words"]), "length": ("INT64", ["batch"])},
        outputs={"state": ("FLOAT", ["batch", 2 * layers, cells])},
    )


def step_model(values: Mapping[str, np.ndarray], persona: np.ndarray | None, *, layers: int) -> Any:
    """The graph of one decoder step."""
    cells = values["decoder.0.weight_hh_l0"].shape[1]
    before = [f"{kind}_{number}" for number in range(layers) for kind in ("hidden", "cell")]
    part = Part(
        [
            _node("Gather", ["words.weight", "tokens"], "input_0"),
            _node("Reshape", ["state", "flat_shape"], "flat_state"),
            _node("Split", ["flat_state", "state_sizes"], *before, axis=1),
        ],
        {
            "words.weight": values["words.weight"],
            "flat_shape": np.array([-1, 2 * layers * cells]),
            "state_sizes": np.array([cells] * 2 * layers),
            "gate_sizes": np.array([cells] * 4),
        },
    )
    for number in range(layers):
        part += _decoder_layer(values, number, persona)
    after = [name for number in range(layers) for name in (f"input_{number + 1}", f"new_cell_{number}")]
    part += Part(
        [
            _node("Concat", after, "flat_new_state", axis=1),
            _node("Reshape", ["flat_new_state", "state_shape"], "new_state"),
            _node("MatMul", [f"input_{layers}", "output.weight"], "scores"),
            _node("Add", ["scores", "output.bias"], "logits"),
            _node("LogSoftmax", ["logits"], "log_probs", axis=1),
        ],
        {
            "state_shape": np.array([-1, 2 * layers, cells]),
            "output.weight": values["output.weight"].T,
            "output.bias": values["output.bias"],
        },
    )
    state = ("FLOAT", ["batch", 2 * layers, cells])
    return _model(
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
            _node("Shape", [length], "rows"),
            _node("Concat", ["one", "rows", "one"], "first_shape", axis=0),
            _node("Expand", ["persona_word", "first_shape"], "first_step"),
            _node("Concat", ["first_step", steps], "steps_with_persona", axis=0),
            _node("Add", [length, "one"], "length_with_persona"),
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
            _node("LSTM", read, *states, hidden_size=given["weight_hh"].shape[1]),
            _node("Squeeze", [states[0], "axis_of_directions"], f"steps_{number}"),
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
    weight, added = f"decoder.{number}.weight", f"decoder.{number}.bias"

    def name(value: str) -> str:
        return f"{value}_{number}"

    gates = [name(gate) for gate in ("i", "f", "g", "o")]
    return Part(
        [
            _node("Concat", [name("input"), name("hidden")], name("read"), axis=1),
            _node("MatMul", [name("read"), weight], name("product")),
            _node("Add", [name("product"), added], name("gates")),
            _node("Split", [name("gates"), "gate_sizes"], *gates, axis=1),
            _node("Sigmoid", [gates[0]], name("input_gate")),
            _node("Sigmoid", [gates[1]], name("forget_gate")),
            _node("Tanh", [gates[2]], name("candidate")),
            _node("Sigmoid", [gates[3]], name("output_gate")),
            _node("Mul", [name("forget_gate"), name("cell")], name("kept")),
            _node("Mul", [name("input_gate"), name("candidate")], name("added")),
            _node("Add", [name("kept"), name("added")], name("new_cell")),
            _node("Tanh", [name("new_cell")], name("squashed")),
            _node("Mul", [name("output_gate"), name("squashed")], f"input_{number + 1}"),
        ],
        {weight: np.concatenate((of_input, given["weight_hh"]), axis=1).T, added: bias},
    )


# Files


def _onnx() -> Any:
    return import_module("onnx")


def _node(operator: str, inputs: list[str], *outputs: str, **attributes: Any) -> Any:
    return _onnx().helper.make_node(operator, inputs, list(outputs), name=outputs[0], **attributes)


def _model(
    name: str, part: Part, *, inputs: dict[str, tuple[str, list[Any]]], outputs: dict[str, tuple[str, list[Any]]]
) -> Any:
    """A checked model."""
    onnx = _onnx()

    def described(tensors: dict[str, tuple[str, list[Any]]]) -> list[Any]:
        make = onnx.helper.make_tensor_value_info
        return [make(one, getattr(onnx.TensorProto, kind), shape) for one, (kind, shape) in tensors.items()]

    constants = [
        onnx.numpy_helper.from_array(np.ascontiguousarray(value), one) for one, value in part.constants.items()
    ]
    graph = onnx.helper.make_graph(part.nodes, name, described(inputs), described(outputs), constants)
    model = onnx.helper.make_model(
        graph,
        opset_imports=[onnx.helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="homespun",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def _write_int8(model: Any, path: Path) -> None:
    """Quantize the word embeddings and the decoder's matrices; their inputs are quantized in each call.

    The encoder's LSTM stays float32: it is small next to the words, its errors add up over the steps of a question, and
    its quantized operator is not in the ONNX standard.
    """
    quantization = import_module("onnxruntime.quantization")
    shapes = import_module("onnxruntime.quantization.shape_inference")
    shapes.quant_pre_process(model, path, skip_optimization=True, skip_symbolic_shape=True)
    quantization.quantize_dynamic(
        path,
        path,
        op_types_to_quantize=["Gather", "MatMul"],
        per_channel=True,
        weight_type=quantization.QuantType.QInt8,
    )
