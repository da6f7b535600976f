"""A decoder's weights on the device, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor as Torch

from octavo_inference.backends.cuda.kernels.norm import DeviceNorm
from octavo_inference.backends.cuda.kernels.tuned_configs import Tiles
from octavo_inference.backends.cuda.kernels.weight_layouts import DeviceMatrix
from octavo_inference.backends.cuda.linear import Embedding, Linear


@dataclass(frozen=True, slots=True)
class DeviceAttention:
    """Attention: `qkv` stacks the rows of q, k, v, and of the gate of the outputs if it has one.

    Norms, [head_dim] or as wide as q and k, and `sinks` [heads] are float32.
    """

    qkv: Linear
    o: Linear
    q_norm: DeviceNorm | None
    k_norm: DeviceNorm | None
    sinks: Torch | None


@dataclass(frozen=True, slots=True)
class DeviceLatent:
    """Latent attention: `qkv` stacks the rows of q, or of the queries' latent, and those of the latent and shared key.

    k_up [heads * nope, rank] and v_up [heads * value, rank] have the type of activations, norms are float32.
    """

    qkv: Linear
    o: Linear
    k_up: Torch
    v_up: Torch
    kv_norm: Torch
    q_norm: Torch | None
    q_up: Linear | None


@dataclass(frozen=True, slots=True)
class DeviceMlp:
    """A dense MLP: `gate_up` stacks the rows of gate and up. `xielu` [2]: that of `LayerWeights`, in float32."""

    gate_up: Linear
    down: Linear
    xielu: Torch | None = None


@dataclass(frozen=True, slots=True)
class DeviceExperts:
    """A mixture of experts: the matrices of all experts are one (`expert_plan`), and so are their biases.

    `router` has a row more with `shared_gate`: its product is the gate of `shared`, the MLP that every token uses.
    `router_bias` and `correction` [experts] are float32.
    """

    router: Torch
    router_bias: Torch | None
    correction: Torch | None
    gate_up: DeviceMatrix
    gate_up_bias: Torch | None
    down: DeviceMatrix
    down_bias: Torch | None
    shared: DeviceMlp | None


@dataclass(frozen=True, slots=True)
class DeviceState:
    """A state layer: `inputs` stacks the rows of all its inputs. The others are float32.

    `conv` [kernel, channels], the oldest token's first; `rate` [heads] is -exp(A_log).
    """

    inputs: Linear
    output: Linear
    conv: Torch
    conv_bias: Torch | None
    rate: Torch | None
    step_bias: Torch | None
    skip: Torch | None
    norm: Torch | None


@dataclass(frozen=True, slots=True)
class DeviceLayer:
    """A layer: mixers, whose outputs are added, and a feed-forward part, with the norms around them in float32.

    A layer has at least one of them.
    """

    mixer: DeviceAttention | DeviceLatent | None
    state: DeviceState | None
    feed_forward: DeviceMlp | DeviceExperts | None
    input_norm: DeviceNorm | None
    post_norm: DeviceNorm | None
    attention_output_norm: DeviceNorm | None
    mlp_output_norm: DeviceNorm | None


@dataclass(frozen=True, slots=True)
class DeviceWeights:
    """A decoder's weights on the device, `nbytes` in all. A tied `lm_head` reads the embedding's memory."""

    embedding: Embedding
    layers: tuple[DeviceLayer, ...]
    final_norm: DeviceNorm | None
    lm_head: Linear
    nbytes: int
    tiles: Tiles
    embedding_norm: DeviceNorm | None = None
