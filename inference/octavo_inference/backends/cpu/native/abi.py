"""The structures of abi.h as ctypes, field by field."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int8, c_int32, c_int64, c_void_p
from typing import Any, ClassVar, Literal, get_args

from octavo_inference.models.config import Activation
from octavo_inference.models.weights import Format

PackedFormat = Literal[
    "f32",
    "bf16",
    "int4",
    "int6",
    "int8",
    "int4_16",
    "int4_symmetric",
    "int4_symmetric_16",
    "code4",
    "code4_16",
    "int8_minimum",
    "fp8",
]
VERSION = 19
FORMATS: dict[Format, int] = {
    "f32": 0,
    "bf16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q8_0": 4,
    "q5_0": 5,
    "q5_1": 6,
    "q4_k": 7,
    "q5_k": 8,
    "q6_k": 9,
}
GROUPS = 10
PACKED: dict[PackedFormat, int] = {
    name: number if number < 2 else number + 14 for number, name in enumerate(get_args(PackedFormat))
}


def is_of_integers(format_: int) -> bool:
    """Whether a packed format is one of integers, with scales."""
    return format_ >= PACKED["int4"] and format_ != PACKED["fp8"]


MAMBA2, GATED_DELTA, SHORT_CONV = 0, 1, 2
SCORINGS: dict[str, int] = {"softmax": 0, "sigmoid": 1, "softmax_of_chosen": 2, "softmax_of_near": 3}
ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "relu": 3, "relu2": 4, "xielu": 5}
CONCATENATED, INTERLEAVED = 0, 1

Fields = list[tuple[str, Any]]


class Info(ctypes.Structure):
    """Build parameters of a variant."""

    _fields_: ClassVar[Fields] = [
        (name, c_int32)
        for name in (
            "abi_version",
            "vector_floats",
            "panel",
            "max_rows",
            "activation_bytes",
            "quantized_block_bytes",
        )
    ]


class StoredMatrix(ctypes.Structure):
    """A tensor as stored in the file, or groups in memory."""

    _fields_: ClassVar[Fields] = [
        *[(name, c_void_p) for name in ("data", "scale", "minimum")],
        *[(name, c_int64) for name in ("rows", "cols", "row_bytes", "group")],
        ("format", c_int32),
    ]


class PackedMatrix(ctypes.Structure):
    """A packed matrix, or several parts of one; rows are padded to whole panels."""

    _fields_: ClassVar[Fields] = [
        *[(name, c_void_p) for name in ("data", "bias", "factor", "order", "parts")],
        *[(name, c_int64) for name in ("rows", "cols", "span", "first_row")],
        *[(name, c_int32) for name in ("format", "part_count")],
        ("levels", c_int8 * 16),
    ]


class StateSizes(ctypes.Structure):
    """The sizes of a model's state layers."""

    _fields_: ClassVar[Fields] = [
        *[(name, c_int64) for name in ("channels", "inner", "elements")],
        *[
            (name, c_int32)
            for name in ("kind", "taps", "heads", "key_heads", "rows", "columns", "norm_group", "norm_first")
        ],
        *[(name, c_float) for name in ("step_least", "step_most")],
    ]


class PackedState(ctypes.Structure):
    """A state layer."""

    _fields_: ClassVar[Fields] = [
        *[(name, c_void_p) for name in ("conv", "conv_bias", "decay", "step_bias", "skip", "norm", "slots")],
        *[(name, PackedMatrix) for name in ("inputs", "output")],
    ]


class NormArgs(ctypes.Structure):
    """A norm of rows; without a weight there is none."""

    _fields_: ClassVar[Fields] = [("weight", c_void_p), ("bias", c_void_p)]


class RoutingArgs(ctypes.Structure):
    """How tokens choose among experts; count 0: there are none."""

    _fields_: ClassVar[Fields] = [
        *[
            (name, c_int32)
            for name in (
                "count",
                "chosen",
                "scoring",
                "normalized",
                "groups",
                "chosen_groups",
                "group_best",
                "input_scaled",
            )
        ],
        *[(name, c_float) for name in ("scale", "clamp", "near")],
    ]


class ExpertLayer(ctypes.Structure):
    """A mixture of experts of one layer (Experts of abi.h)."""

    _fields_: ClassVar[Fields] = [
        ("router", PackedMatrix),
        *[(name, c_void_p) for name in ("correction", "gate_up", "down", "tokens")],
        *[(name, c_int32) for name in ("shared", "shared_gate", "integers", "ordered")],
    ]


class LayerArgs(ctypes.Structure):
    """One decoder layer."""

    _fields_: ClassVar[Fields] = [
        *[
            (name, NormArgs)
            for name in ("input_norm", "post_norm", "q_norm", "k_norm", "attention_output_norm", "mlp_output_norm")
        ],
        *[(name, c_void_p) for name in ("rope", "sinks", "slopes", "kv")],
        *[(name, PackedMatrix) for name in ("qkv", "output", "gate_up", "down")],
        *[(name, c_int32) for name in ("heads", "kv_heads", "head_norm_stride", "window", "chunk", "group")],
        *[(name, c_float) for name in ("xielu_positive", "xielu_negative")],
        ("state", PackedState),
        *[(name, PackedMatrix) for name in ("query_up", "key_up", "value_up")],
        *[(name, c_void_p) for name in ("query_norm", "latent_norm")],
        ("experts", c_void_p),
    ]


class Latent(ctypes.Structure):
    """Sizes of latent attention, and its buffers."""

    _fields_: ClassVar[Fields] = [
        *[(name, c_void_p) for name in ("by_head", "absorbed", "queries")],
        *[(name, c_int32) for name in ("heads", "rank", "nope", "rope", "value", "query_rank")],
        ("norm_eps", c_float),
    ]


class DecoderArgs(ctypes.Structure):
    """Weights, sizes and scratch buffers."""

    _fields_: ClassVar[Fields] = [
        ("layers", POINTER(LayerArgs)),
        ("embedding_norm", NormArgs),
        ("final_norm", NormArgs),
        ("token_type", c_void_p),
        ("second_token_type", c_void_p),
        ("embedding", StoredMatrix),
        ("positions", StoredMatrix),
        ("lm_head", PackedMatrix),
        *[
            (name, c_void_p)
            for name in (
                "hidden_state",
                "qkv",
                "projected",
                "logits",
                "normed",
                "attended",
                "activated",
                "quantized",
                "scratch",
                "partials",
            )
        ],
        *[(name, c_int64) for name in ("scratch_floats", "partial_floats")],
        *[
            (name, c_int32)
            for name in (
                "format",
                "num_layers",
                "hidden",
                "head_dim",
                "rotary_dim",
                "vocab",
                "block_size",
                "activation",
                "layer_norm",
                "qk_norm_whole",
                "qk_norm_rotated",
                "post_residual_norms",
                "parallel",
                "gated",
                "bidirectional",
            )
        ],
        *[
            (name, c_float)
            for name in (
                "norm_eps",
                "score_scale",
                "attention_softcap",
                "logit_softcap",
                "embedding_scale",
                "residual_scale",
                "logit_scale",
                "qkv_clip",
                "temperature_floor",
                "temperature_factor",
            )
        ],
        *[(name, c_void_p) for name in ("state_inputs", "mixed")],
        ("state", StateSizes),
        ("attention_gate", c_int32),
        ("routing", RoutingArgs),
        *[
            (name, c_void_p)
            for name in (
                "router_input",
                "router_logits",
                "expert_inputs",
                "expert_activated",
                "expert_quantized",
            )
        ],
        ("latent", Latent),
        *[(name, c_void_p) for name in ("adapters", "low_rank")],
        ("low_rank_stride", c_int64),
    ]


class LowRankArgs(ctypes.Structure):
    """An adapter's change of a packed matrix."""

    _fields_: ClassVar[Fields] = [
        *[(name, c_void_p) for name in ("down", "up", "first", "start", "bias")],
        ("ranks", c_int32),
    ]


class TokenRowsArgs(ctypes.Structure):
    """Rows of the embedding or of lm_head in the place of the model's."""

    _fields_: ClassVar[Fields] = [*[(name, c_void_p) for name in ("ids", "rows", "bias")], ("count", c_int32)]


class AdapterArgs(ctypes.Structure):
    """An adapter in a slot."""

    _fields_: ClassVar[Fields] = [
        *[(name, c_void_p) for name in ("parts", "embedding_down", "embedding_up")],
        ("embedding_rank", c_int32),
        *[(name, TokenRowsArgs) for name in ("embedding_rows", "head_rows")],
    ]


class BatchArgs(ctypes.Structure):
    """The inputs of one step; see core/gather.py."""

    _fields_: ClassVar[Fields] = [
        *[
            (name, c_void_p)
            for name in (
                "tokens",
                "positions",
                "slots",
                "query_start",
                "seq_len",
                "block_table",
                "states",
                "token_types",
                "adapter",
            )
        ],
        *[(name, c_int32) for name in ("num_tokens", "num_seqs", "table_width", "num_groups")],
    ]


class Adjust(ctypes.Structure):
    """Adjustments of one row of logits."""

    _fields_: ClassVar[Fields] = [
        *[(name, c_void_p) for name in ("prompt", "output", "banned")],
        *[(name, c_int64) for name in ("prompt_len", "output_len", "banned_len")],
        *[(name, c_void_p) for name in ("bias_ids", "word_ends", "word_tokens", "bias", "mask")],
        *[(name, c_int64) for name in ("bias_len", "words")],
        *[(name, c_float) for name in ("presence", "frequency", "repetition")],
    ]


class SamplingArgs(ctypes.Structure):
    """Sampling parameters for rows of logits, and the output arrays."""

    _fields_: ClassVar[Fields] = [
        *[
            (name, c_void_p)
            for name in (
                "row",
                "position",
                "seed",
                "temperature",
                "top_p",
                "top_k",
                "min_p",
                "logprobs",
                "adjust",
                "report_ids",
                "tokens",
                "logprob",
                "rank",
                "top_ids",
                "top_logprobs",
                "adapter",
            )
        ],
        *[(name, c_int32) for name in ("count", "top_width")],
    ]


class PoolingArgs(ctypes.Structure):
    """Hidden states to sum; see `core.model_input.RowPooling`."""

    _fields_: ClassVar[Fields] = [
        *[(name, c_void_p) for name in ("row", "first", "end", "fresh", "sums")],
        ("count", c_int32),
    ]


class DecodeRunArgs(ctypes.Structure):
    """Several steps in one call; see `core.model_input.DecodeRun`."""

    _fields_: ClassVar[Fields] = [
        ("seconds", c_double),
        *[(name, c_void_p) for name in ("end_ids", "end_start")],
        *[(name, c_int32) for name in ("steps", "message_fd")],
    ]


class PartSeconds(ctypes.Structure):
    """Seconds per part, summed over steps."""

    _fields_: ClassVar[Fields] = [
        (name, c_double) for name in ("linears", "attention", "lm_head", "elementwise", "sampling", "experts", "states")
    ]
