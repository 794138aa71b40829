"""A program is recorded only from exactly the tensors that it reads."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from ellm.config.model import RopeConfig, RopeScaling
from ellm.errors import InvalidModelError, UnsupportedError
from ellm.models import ARCHITECTURES, build_program
from ellm.program.ops import (
    Activation,
    Attention,
    Embed,
    GatedLinear,
    Head,
    Linear,
    LinearAdd,
    RopeAppend,
    RopeStyle,
)
from tests.support.tiny_models import TinyTensor, tiny_model

ALL = pytest.mark.parametrize("architecture", ARCHITECTURES)


def tensors_of(architecture: str, **changes: Any) -> dict[str, TinyTensor]:
    return dict(tiny_model(architecture, **changes).tensors)


def reshaped(tensor: TinyTensor, *shape: int) -> TinyTensor:
    return tensor._replace(shape=shape)


@ALL
def test_each_missing_tensor_is_refused_by_name(architecture: str) -> None:
    model = tiny_model(architecture, num_layers=1)
    for name in model.tensors.keys() - {"output.weight"}:
        left = {key: tensor for key, tensor in model.tensors.items() if key != name}
        with pytest.raises(InvalidModelError, match=f"m.gguf: tensor {name}: found no such"):
            build_program(model.config, left, path="m.gguf")


@ALL
def test_each_tensor_of_another_shape_is_refused_by_name(architecture: str) -> None:
    model = tiny_model(architecture, num_layers=1)
    for name, tensor in model.tensors.items():
        rows, *cols = tensor.shape
        wrong = dict(model.tensors) | {name: reshaped(tensor, rows + 1, *cols)}
        with pytest.raises(InvalidModelError, match=f"tensor {name}") as caught:
            build_program(model.config, wrong)
        assert caught.value.found == f"shape {(rows + 1, *cols)}"
        assert caught.value.expected == f"shape {tensor.shape}"


@ALL
def test_transposed_matrix_is_refused(architecture: str) -> None:
    model = tiny_model(architecture)
    name = "blk.0.ffn_up.weight"
    rows, cols = model.tensors[name].shape
    wrong = dict(model.tensors) | {name: reshaped(model.tensors[name], cols, rows)}
    with pytest.raises(InvalidModelError, match=name):
        build_program(model.config, wrong)


@ALL
def test_embedding_of_another_vocabulary_is_refused(architecture: str) -> None:
    model = tiny_model(architecture)
    config = dataclasses.replace(model.config, vocab_size=130)
    with pytest.raises(InvalidModelError, match=r"token_embd.weight"):
        build_program(config, model.tensors)


@ALL
def test_tensor_that_no_op_reads_is_refused(architecture: str) -> None:
    model = tiny_model(architecture)
    extra = {"blk.0.attn_sinks.weight": TinyTensor("f32", (6,), model.tensors["output.weight"][2])}
    with pytest.raises(UnsupportedError, match=r"blk\.0\.attn_sinks\.weight would be ignored"):
        build_program(model.config, dict(model.tensors) | extra)


@ALL
def test_tensors_of_more_layers_than_the_file_claims_are_refused(architecture: str) -> None:
    model = tiny_model(architecture)
    config = dataclasses.replace(model.config, num_layers=model.config.num_layers - 1)
    with pytest.raises(UnsupportedError, match=r"and [0-9]+ more"):
        build_program(config, model.tensors)


@ALL
def test_rope_factors_read_with_the_configuration_are_no_surplus(architecture: str) -> None:
    model = tiny_model(architecture)
    factors = {"rope_freqs.weight": TinyTensor("f32", (8,), model.tensors["output.weight"][2])}
    assert build_program(model.config, dict(model.tensors) | factors) == model.program


@ALL
def test_optional_biases_are_used_where_the_file_has_them(architecture: str) -> None:
    model = tiny_model(architecture)
    size = model.config.hidden_size
    bias = {"blk.1.ffn_down.bias": TinyTensor("f32", (size,), model.tensors["output.weight"][2])}
    program = build_program(model.config, dict(model.tensors) | bias)
    parts = [op.part for op in program.ops if isinstance(op, LinearAdd)]
    parts += [part for op in program.ops if isinstance(op, Linear) for part in op.parts]
    assert [part.weight for part in parts if part.bias == "blk.1.ffn_down.bias"] == [
        "blk.1.ffn_down.weight"
    ]


@ALL
def test_unknown_architecture_is_refused(architecture: str) -> None:
    model = tiny_model(architecture)
    config = dataclasses.replace(model.config, architecture="mamba")
    with pytest.raises(UnsupportedError, match="'mamba'"):
        build_program(config, model.tensors)


@ALL
def test_layers_are_marked_between_embedding_and_head(architecture: str) -> None:
    program = tiny_model(architecture).program
    assert isinstance(program.ops[0], Embed)
    assert isinstance(program.ops[-1], Head)
    assert program.layer_starts[0] == 1
    assert len(program.layer_starts) == program.num_layers
    layers = [
        program.ops[start:end]
        for start, end in zip(
            program.layer_starts, (*program.layer_starts[1:], len(program.ops) - 1), strict=True
        )
    ]
    for index, ops in enumerate(layers):
        assert {op.layer for op in ops if isinstance(op, RopeAppend | Attention)} == {index}
    assert len({len(ops) for ops in layers}) == 1


@pytest.mark.parametrize(
    ("architecture", "style", "activation"),
    [
        ("llama", RopeStyle.INTERLEAVED, Activation.SILU),
        ("qwen2", RopeStyle.HALVES, Activation.SILU),
        ("gemma3", RopeStyle.HALVES, Activation.GELU_TANH),
    ],
)
def test_rotation_and_gate_of_each_family(
    architecture: str, style: RopeStyle, activation: Activation
) -> None:
    program = tiny_model(architecture).program
    assert {table.style for table in program.rope_tables} == {style}
    gates = {op.activation for op in program.ops if isinstance(op, GatedLinear)}
    assert gates == {activation}


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_sliding_window_that_matters_is_refused_where_layers_do_not_slide(
    architecture: str,
) -> None:
    assert tiny_model(architecture, sliding_window=512).program == tiny_model(architecture).program
    with pytest.raises(UnsupportedError, match="sliding_window is 511"):
        tiny_model(architecture, sliding_window=511)


def gemma3_windows(**changes: Any) -> list[int | None]:
    program = tiny_model("gemma3", **changes).program
    return [op.window for op in program.ops if isinstance(op, Attention)]


def test_gemma3_layers_slide_as_the_file_says() -> None:
    assert gemma3_windows() == [37, 37, 37, 37, 37, None, 37]
    assert gemma3_windows(num_layers=4, sliding_pattern=2) == [37, None, 37, None]
    assert gemma3_windows(num_layers=3, sliding_pattern=(False, True, True)) == [None, 37, 37]
    assert gemma3_windows(num_layers=3, sliding_window=None) == [None, None, None]


def test_gemma3_flags_for_another_number_of_layers_are_refused() -> None:
    with pytest.raises(InvalidModelError, match="2 flags"):
        tiny_model("gemma3", num_layers=3, sliding_pattern=(False, True))


def test_gemma3_scales_rotation_only_in_global_layers() -> None:
    rope = RopeConfig(base=1e6, dimension_count=10, scaling=RopeScaling.LINEAR, factor=8.0)
    program = tiny_model("gemma3", rope=rope).program
    tables = [
        program.rope_tables[op.rope_table] for op in program.ops if isinstance(op, RopeAppend)
    ]
    assert tables[5].inverse_frequencies[0] == 1 / 8
    assert tables[5].inverse_frequencies[1] == pytest.approx(1e6**-0.2 / 8)
    for layer in (0, 1, 2, 3, 4, 6):
        assert tables[layer].inverse_frequencies[:2] == (1.0, pytest.approx(1e4**-0.2))


def test_gemma3_sliding_base_of_the_file_wins() -> None:
    program = tiny_model("gemma3", sliding_rope_base=3e4).program
    append = next(op for op in program.ops if isinstance(op, RopeAppend))
    frequencies = program.rope_tables[append.rope_table].inverse_frequencies
    assert frequencies[1] == pytest.approx(3e4**-0.2)


def test_gemma3_scales_embeddings_and_the_27b_its_attention_by_another_width() -> None:
    def scales(num_layers: int) -> tuple[float, float]:
        program = tiny_model("gemma3", num_layers=num_layers).program
        embed = next(op for op in program.ops if isinstance(op, Embed))
        attention = next(op for op in program.ops if isinstance(op, Attention))
        return embed.scale, attention.scale

    assert scales(7) == (pytest.approx(44**0.5), pytest.approx(10**-0.5))
    assert scales(62) == (pytest.approx(44**0.5), pytest.approx(7**-0.5))
