"""ONNX graphs written operator by operator: they have few, and the file then does not depend on a version of torch.

A step of a recurrent model has an input `state` [batch, 2 layers, cells], the hidden and the cell state of each layer,
and returns `new_state`. `read_state`, `lstm_cell` and `write_state` are its common parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module, util
from pathlib import Path
from typing import Any

import numpy as np

from homespun.core.errors import InputError

EXTRA = "pip install 'homespun[onnx]'"
OPSET, IR_VERSION = 17, 8  # read by every onnxruntime since 1.12, in browsers and on phones as well

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


def onnx() -> Any:
    return import_module("onnx")


def node(operator: str, inputs: list[str], *outputs: str, **attributes: Any) -> Any:
    return onnx().helper.make_node(operator, inputs, list(outputs), name=outputs[0], **attributes)


def read_state(*, layers: int, cells: int) -> Part:
    """`state` -> `hidden_n` and `cell_n` of each layer."""
    before = [f"{kind}_{number}" for number in range(layers) for kind in ("hidden", "cell")]
    return Part(
        [
            node("Reshape", ["state", "flat_shape"], "flat_state"),
            node("Split", ["flat_state", "state_sizes"], *before, axis=1),
        ],
        {
            "flat_shape": np.array([-1, 2 * layers * cells]),
            "state_sizes": np.array([cells] * 2 * layers),
            "gate_sizes": np.array([cells] * 4),
        },
    )


def lstm_cell(name: str, number: int, *, of_input: np.ndarray, of_hidden: np.ndarray, bias: np.ndarray) -> Part:
    """`input_n`, `hidden_n`, `cell_n` -> `input_{n+1}`, which is the new hidden state, and `new_cell_n`. The weights
    have the gates of `nn.LSTM`; `name` is that of the constants."""
    weight, added = f"{name}.{number}.weight", f"{name}.{number}.bias"

    def of(value: str) -> str:
        return f"{value}_{number}"

    gates = [of(gate) for gate in ("i", "f", "g", "o")]
    return Part(
        [
            node("Concat", [of("input"), of("hidden")], of("read"), axis=1),
            node("MatMul", [of("read"), weight], of("product")),
            node("Add", [of("product"), added], of("gates")),
            node("Split", [of("gates"), "gate_sizes"], *gates, axis=1),
            node("Sigmoid", [gates[0]], of("input_gate")),
            node("Sigmoid", [gates[1]], of("forget_gate")),
            node("Tanh", [gates[2]], of("candidate")),
            node("Sigmoid", [gates[3]], of("output_gate")),
            node("Mul", [of("forget_gate"), of("cell")], of("kept")),
            node("Mul", [of("input_gate"), of("candidate")], of("added")),
            node("Add", [of("kept"), of("added")], of("new_cell")),
            node("Tanh", [of("new_cell")], of("squashed")),
            node("Mul", [of("output_gate"), of("squashed")], f"input_{number + 1}"),
        ],
        {weight: np.concatenate((of_input, of_hidden), axis=1).T, added: bias},
    )


def write_state(*, layers: int, cells: int) -> Part:
    """`new_state`."""
    after = [name for number in range(layers) for name in (f"input_{number + 1}", f"new_cell_{number}")]
    return Part(
        [
            node("Concat", after, "flat_new_state", axis=1),
            node("Reshape", ["flat_new_state", "state_shape"], "new_state"),
        ],
        {"state_shape": np.array([-1, 2 * layers, cells])},
    )


def log_probs(inputs: str, *, weight: np.ndarray, bias: np.ndarray) -> Part:
    """`log_probs` of the words of an output layer."""
    return Part(
        [
            node("MatMul", [inputs, "output.weight"], "scores"),
            node("Add", ["scores", "output.bias"], "logits"),
            node("LogSoftmax", ["logits"], "log_probs", axis=1),
        ],
        {"output.weight": weight.T, "output.bias": bias},
    )


def make_model(
    name: str, part: Part, *, inputs: dict[str, tuple[str, list[Any]]], outputs: dict[str, tuple[str, list[Any]]]
) -> Any:
    """A checked model."""

    def described(tensors: dict[str, tuple[str, list[Any]]]) -> list[Any]:
        make = onnx().helper.make_tensor_value_info
        return [make(one, getattr(onnx().TensorProto, kind), shape) for one, (kind, shape) in tensors.items()]

    constants = [
        onnx().numpy_helper.from_array(np.ascontiguousarray(value), one) for one, value in part.constants.items()
    ]
    graph = onnx().helper.make_graph(part.nodes, name, described(inputs), described(outputs), constants)
    model = onnx().helper.make_model(
        graph,
        opset_imports=[onnx().helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="homespun",
    )
    onnx().checker.check_model(model, full_check=True)
    return model


def write_model(model: Any, path: Path, *, int8: Sequence[str] = ()) -> None:
    """Write a model. `int8` names operators whose constants become 8-bit integers; their other inputs are quantized in
    each call."""
    if not int8:
        path.write_bytes(model.SerializeToString())
        return
    quantization = import_module("onnxruntime.quantization")
    shapes = import_module("onnxruntime.quantization.shape_inference")
    shapes.quant_pre_process(model, path, skip_optimization=True, skip_symbolic_shape=True)
    quantization.quantize_dynamic(
        path,
        path,
        op_types_to_quantize=list(int8),
        per_channel=True,
        weight_type=quantization.QuantType.QInt8,
    )
