"""Quantized checkpoints that lie: a model is loaded, inspected or refused in a sentence that names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.tiers import scaled

from octavo_inference.common.errors import ModelError
from octavo_inference.download.inspect import inspect
from octavo_inference.model_loader import LoadedModel, load_model
from octavo_inference.models.groups import GroupedMatrix

from .conftest import matrices
from .quantized_files import EXAMPLES, checkpoint

FUZZ = settings(max_examples=scaled(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
METHODS = sorted({settings["quant_method"] for settings, _ in EXAMPLES.values()})
# Kinds and sizes that a value has no business to have, and a few that it may.
VALUES = st.sampled_from(
    [
        *(
            None,
            True,
            False,
            0,
            1,
            -1,
            2,
            3,
            4,
            8,
            16,
            31,
            32,
            64,
            2**31,
            2**63,
            10**30,
            0.0,
            0.5,
            1e300,
            "",
            "x",
            "(",
            "gptq",
        ),
        *(
            [],
            [1],
            ["x"],
            [None],
            [[1]],
            [2**40, 1],
            {},
            {"a": 1},
            {"x": {"bits": 3}},
            {"-:.*": {}},
            {".*": {"bits": 8}},
        ),
        *({"weight_quant_params": {"nbits": [4]}}, {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 3}}}),
    ]
)
KEYS = [
    *("bits", "group_size", "sym", "desc_act", "checkpoint_format", "format", "dynamic", "lm_head", "pack_dtype"),
    *("modules_in_block_to_quantize", "w_bit", "q_group_size", "zero_point", "version", "modules_to_not_convert"),
    *("backend", "bnb_4bit_quant_type", "llm_int8_skip_modules", "quant_config", "skip_modules", "packing_format"),
    *("extra_config", "data_type", "config_groups", "ignore", "weight_block_size", "quant_algo", "exclude"),
    *("kv_cache_scheme", "exclude_modules", "quantized_layers", "global_quant_config", "layer_quant_config"),
    "kv_cache_quant_algo",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, bytes, bytes]]:
    """A checkpoint of each example, with its configuration and its weights."""
    root = tmp_path_factory.mktemp("quantized")
    found = {}
    for name, (described, make) in EXAMPLES.items():
        folder = root / name.replace(" ", "-")
        checkpoint(folder, described, matrices(np.random.default_rng(0)), make)
        found[name] = folder, *((folder / file).read_bytes() for file in ("config.json", "model.safetensors"))
    return found


def loads_or_is_refused(folder: Path) -> None:
    """Whatever is loaded can also be read: its weights have their shapes."""
    said = [str(folder)] * 2
    try:
        model = load_model(str(folder))
        assert isinstance(model, LoadedModel)
        for matrix in model.weights.tensors():
            if isinstance(matrix, GroupedMatrix):
                with np.errstate(all="ignore"):  # weights may be infinite, as any float
                    assert matrix.rows(1, 3).dequantize().shape == (2, matrix.shape[1])
    except ModelError as error:
        said[0] = str(error)
    try:
        inspect(str(folder))
    except ModelError as error:
        said[1] = str(error)
    for text in said:
        assert str(folder) in text
        assert "invalid model metadata" not in text, text


@FUZZ
@given(
    name=st.sampled_from(sorted(EXAMPLES)),
    changes=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1, max_size=2),
    method=st.sampled_from([None, None, None, *METHODS]),
)
def test_any_value_in_a_quantization_config(
    folders: dict[str, tuple[Path, bytes, bytes]], name: str, changes: dict[str, Any], method: str | None
) -> None:
    folder, config, weights = folders[name]
    data = json.loads(config)
    data["quantization_config"] |= changes
    if method is not None:
        data["quantization_config"]["quant_method"] = method
    (folder / "config.json").write_text(json.dumps(data))
    (folder / "model.safetensors").write_bytes(weights)
    loads_or_is_refused(folder)


def keys_of(settings: dict[str, Any]) -> list[tuple[str, ...]]:
    """The way to each value, also to those that are objects."""
    found: list[tuple[str, ...]] = []
    for key, value in settings.items():
        found += [(key,), *((key, *rest) for rest in (keys_of(value) if isinstance(value, dict) else []))]
    return found


INNER_VALUES = st.one_of(
    VALUES,
    st.sampled_from([24, 48, 128, -128, "4", "int", "float", "group", "channel", "block", "tensor", "tensor_group"]),
    st.sampled_from(["NVFP4", "FP8", "MIXED_PRECISION", "int-quantized", "float-quantized", "mixed-precision", "re:("]),
    st.sampled_from([["re:.*"], ["Linear"], ["re:("], [128, 128], [1, 10**30], {"format": "dense"}, {"a": {"b": 1}}]),
    st.sampled_from(["9" * 5000 + "x128", "1x1", ["re:(.+)+!"], {"(.+)+!": {}}]),
)
INNER_KEYS = [
    *(("config_groups", "group_0", "weights", name) for name in ("block_structure", "actorder", "zp_dtype")),
    *(("config_groups", "group_0", name) for name in ("format", "input_activations")),
    *((name,) for name in ("sparsity_config", "transform_config", "quantization", "quantization_config")),
]


@FUZZ
@given(name=st.sampled_from(sorted(EXAMPLES)), data=st.data())
def test_any_value_inside_of_a_quantization_config(
    folders: dict[str, tuple[Path, bytes, bytes]], name: str, data: st.DataObject
) -> None:
    folder, config, weights = folders[name]
    described = json.loads(config)
    settings = described["quantization_config"]
    for _ in range(data.draw(st.integers(1, 2))):
        *path, last = data.draw(st.sampled_from([*keys_of(settings), *INNER_KEYS]))
        place: Any = settings
        for key in path:
            place = place.get(key) if isinstance(place, dict) else None
        if isinstance(place, dict):
            place[last] = data.draw(INNER_VALUES)
    (folder / "config.json").write_text(json.dumps(described))
    (folder / "model.safetensors").write_bytes(weights)
    loads_or_is_refused(folder)


@FUZZ
@given(name=st.sampled_from(sorted(EXAMPLES)), data=st.data())
def test_any_shape_type_or_absence_of_tensors(
    folders: dict[str, tuple[Path, bytes, bytes]], name: str, data: st.DataObject
) -> None:
    folder, config, raw = folders[name]
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    quantized = [key for key in header if "_proj." in key]
    for key in data.draw(st.lists(st.sampled_from(quantized), min_size=1, max_size=2, unique=True)):
        entry = header[key]
        shape = entry["shape"]
        match data.draw(st.sampled_from(["gone", "type", "turned", "flat", "scalar", "deeper", "renamed"])):
            case "gone":
                del header[key]
            case "type":
                same = [("U8", "I8", "F8_E4M3", "F8_E8M0"), ("F16", "BF16", "I16"), ("F32", "I32"), ("I64", "F64")]
                kinds = next(kinds for kinds in same if entry["dtype"] in kinds)
                entry["dtype"] = data.draw(st.sampled_from(kinds))
            case "turned":
                entry["shape"] = shape[::-1]
            case "flat":
                entry["shape"] = [int(np.prod(shape))]
            case "scalar" if int(np.prod(shape)) == 1:
                entry["shape"] = []
            case "deeper":
                entry["shape"] = [1, *shape]
            case "renamed":
                header[key.replace("layers.0", "layers.1")] = header.pop(key)
    text = json.dumps(header).encode()
    (folder / "config.json").write_bytes(config)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    loads_or_is_refused(folder)


@FUZZ
@given(name=st.sampled_from(sorted(EXAMPLES)), data=st.data())
def test_any_contents(folders: dict[str, tuple[Path, bytes, bytes]], name: str, data: st.DataObject) -> None:
    folder, config, raw = folders[name]
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    damaged = bytearray(raw)
    for key in data.draw(st.lists(st.sampled_from([k for k in header if "_proj." in k]), min_size=1, max_size=3)):
        begin, end = (8 + length + offset for offset in header[key]["data_offsets"])
        part = data.draw(st.sampled_from([b"\0", b"\xff", b"\x7f", b"\1", b"9"]) | st.binary(min_size=1, max_size=16))
        damaged[begin:end] = (part * (end - begin))[: end - begin]
    (folder / "config.json").write_bytes(config)
    (folder / "model.safetensors").write_bytes(bytes(damaged))
    loads_or_is_refused(folder)


@pytest.mark.parametrize("text", ["(.+)+!", "(a|a)*!", "a?" * 60, ".*" * 12 + "!", "x" * 512 + "$", "(?x) ( .+ ) + !"])
@pytest.mark.parametrize("place", ["targets", "ignore", "dynamic", "extra_config"])
def test_a_pattern_that_takes_too_long(folders: dict[str, tuple[Path, bytes, bytes]], text: str, place: str) -> None:
    example = {"dynamic": "gptq", "extra_config": "auto-round"}.get(place, "compressed-tensors")
    folder, config, weights = folders[example]
    data = json.loads(config)
    described = data["quantization_config"]
    if place == "targets":
        described["config_groups"]["group_0"]["targets"] = ["re:" + text]
    else:
        described[place] = ["re:" + text] if place == "ignore" else {text: {"bits": 8}}
    (folder / "config.json").write_text(json.dumps(data))
    (folder / "model.safetensors").write_bytes(weights)
    for read in (load_model, inspect):
        with pytest.raises(ModelError, match=r"take too long to match|pattern of 513 characters"):
            read(str(folder))


def test_many_targets(folders: dict[str, tuple[Path, bytes, bytes]]) -> None:
    folder, config, weights = folders["compressed-tensors"]
    data = json.loads(config)
    targets = [f"model.layers.{n}.mlp.up_proj" for n in range(20_000)] + ["re:.*_proj"]
    data["quantization_config"]["config_groups"]["group_0"]["targets"] = targets
    (folder / "config.json").write_text(json.dumps(data))
    (folder / "model.safetensors").write_bytes(weights)
    assert isinstance(load_model(str(folder)), LoadedModel)
    data["quantization_config"]["ignore"] = [f"re:.*{n}.*" for n in range(20_000)]
    (folder / "config.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match="ignore has 20000 patterns that can take too long"):
        load_model(str(folder))
