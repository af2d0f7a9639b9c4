"""DaemonConfig: the operator writes it with the class the daemon reads it with, so that no flag can drift.

It lives in a ConfigMap under `names.DAEMON_CONFIG_KEY`. Fields are only added; unknown ones are kept and warned of (version skew).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pagoda_contracts.names import (
    PORT_DAEMON_GRPC,
    PORT_DAEMON_HTTP,
    PORT_KV_EVENTS,
    PORT_KV_REPLAY,
    PORT_PROBES,
    RUN_DIR,
)
from pagoda_contracts.units import Duration


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel, populate_by_name=True)


def _later(description: str) -> Any:
    """A field that daemons of this version know and do not act on: set, it is warned of like an unknown one."""
    return Field(default=None, description=description, json_schema_extra={"later": True})


ToolParser = Literal[
    "hermes",
    "llama3_json",
    "mistral",
    "pythonic",
    "llama4_pythonic",
    "qwen3_coder",
    "deepseek_v3",
    "deepseek_v31",
    "glm45",
    "granite",
    "phi4_mini_json",
    "openai",
]
ReasoningParser = Literal["deepseek_r1", "deepseek_v3", "qwen3", "glm45", "granite", "mistral", "openai_gptoss", "none"]


_CPU_TOKENS: Final = 512
_CUDA_TOKENS: Final = 2048  # 512 tokens of prompts leave most of a GPU idle


def token_budget(asked: int | None, *, cuda: bool) -> int:
    """Tokens of a step: as asked, else what suits the device. Daemon, operator and sizing count by this."""
    return asked or (_CUDA_TOKENS if cuda else _CPU_TOKENS)


class ModelConfig(_Section):
    """Where the model's files are in the pod, and the names it answers to."""

    path: str = Field(description="Directory with config.json, tokenizer.json and *.safetensors.")
    served_names: Annotated[tuple[str, ...], Field(min_length=1, description="What clients put in `model`. Metrics have the first.")]
    chat_template: str | None = Field(default=None, description="File with a Jinja template. Default: the model's own.")


class EngineConfig(_Section):
    """Limits and numerics. Absent means: resolved by the daemon from the model and the cgroup."""

    max_model_len: int | None = Field(default=None, description="Longest prompt plus answer, in tokens. Default: the model's limit.")
    max_concurrency: int = Field(default=64, description="Requests that decode at the same time.")
    token_budget: int = Field(
        default=_CPU_TOKENS,
        ge=16,
        description=f"Tokens computed per step: all decodes first, then prefill chunks. Absent on a GPU: {_CUDA_TOKENS}.",
    )
    dtype: Literal["bfloat16", "float32"] = Field(default="bfloat16", description="Type of weights, activations and KV.")
    device: Literal["auto", "cpu", "cuda"] | None = Field(
        default=None, description="Where weights and KV live. auto (default) is cuda if the container has one, else cpu."
    )
    block_size: int = Field(default=16, description="Tokens of a KV block: 16, 32 or 64. Native ops need 16.")
    kv_bytes: int | None = Field(default=None, ge=1, description="Bytes for KV blocks. Default: what the memory leaves.")
    threads: int | None = Field(default=None, ge=1, description="Compute threads. Default: the cores that the cgroup grants.")
    quantization: Literal["fp8", "int8", "int4", "nvfp4"] | None = Field(
        default=None,
        description="Type of the weights' matrices. Default: the model's own. int8 is built for CPU; fp8, int8 and int4 for NVIDIA GPUs; "
        "others are refused.",
    )
    deterministic: bool | None = Field(
        default=None, description="The same request gets the same answer, whatever other requests are in the batch."
    )
    prefix_caching: bool | None = Field(default=None, description="Whether blocks of equal beginnings are shared. Default: true.")
    seed: int | None = Field(
        default=None,
        ge=0,
        description="Seeds of requests without a `seed`, in the order of their arrival, follow from this one. Default: random.",
    )
    tool_parser: ToolParser | None = Field(default=None, description="How the model writes tool calls. Default: as its chat template does.")
    reasoning_parser: ReasoningParser | None = Field(
        default=None, description="How the model marks its reasoning. Default: as its chat template does. none: all is content."
    )
    kv_dtype: Literal["bfloat16", "float8", "int8"] | None = Field(
        default=None,
        description="Type of keys and values. Default: dtype. float8 and int8 are for GPUs and bfloat16, float8 from capability 8.9 on.",
    )
    kv_memory_fraction: float | None = Field(
        default=None,
        description="Share of all memory of the device, above 0 and up to 1, for weights, steps and KV. Default: a safe one.",
    )
    cpu_offload_bytes: int | None = _later("Host memory for evicted blocks, in bytes.")
    tensor_parallel: int | None = _later("Devices over which each layer is spread.")

    def at(self, *, cuda: bool) -> Self:
        """With the token budget that suits the device, if none was set."""
        asked = self.token_budget if "token_budget" in self.model_fields_set else None
        return self.model_copy(update={"token_budget": token_budget(asked, cuda=cuda)})


class AdapterModule(_Section):
    """A LoRA adapter that is loaded at the start."""

    name: str = Field(description="What clients put in `model`.")
    path: str = Field(description="Directory with adapter_config.json and adapter_model.safetensors.")


class AdaptersConfig(_Section):
    """LoRA adapters. Given, the daemon takes them."""

    max_loaded: int = Field(default=8, ge=1, description="Names of adapters at the same time.")
    max_rank: int = Field(default=64, ge=1, description="Largest rank of an adapter.")
    modules: tuple[AdapterModule, ...] = Field(default=(), description="Adapters that are loaded at the start.")
    directory: str | None = Field(
        default=None,
        description="Directory below which adapters may lie that /v1/load_lora_adapter loads; where absent, it loads none.",
    )
    fetch_port: int | None = Field(
        default=None,
        description="Port on loopback of the fetch sidecar. Given, an operator says by gRPC which adapters there are, the sidecar brings "
        "them, and the endpoints that load and unload are off.",
    )


class HealthConfig(_Section):
    """When the replica calls itself broken."""

    progress_timeout: Duration = Field(default="120s", description="A loop or a step without progress for this long is a hang.")
    deep_probe_every: Duration = Field(default="30s", description="Time between two deep checks; an answer that takes longer is late.")
    load_timeout: Duration = Field(default="300s", description="A load that has not moved for this long is stuck.")


class SloConfig(_Section):
    """The latency that clients are promised. Goodput counts the answers that met it."""

    ttft: Duration | None = Field(default=None, description="Arrival to first token.")
    itl: Duration | None = Field(default=None, description="Mean time per token after the first, of an answer.")


class TlsConfig(_Section):
    """A certificate for the HTTP port. gRPC, probes and KV events stay unencrypted."""

    cert_file: str = Field(description="Certificate in PEM, followed by its chain. Renewed files are used by new connections.")
    key_file: str | None = Field(default=None, description="Its private key in PEM, without a password. Default: the one in certFile.")


class Listen(_Section):
    """Addresses; port 0 lets the kernel choose (stand-alone and tests)."""

    host: str = Field(default="0.0.0.0", description="Address of all ports but those of KV events.")
    http: int = Field(default=PORT_DAEMON_HTTP, description="OpenAI API and metrics.")
    grpc: int = Field(default=PORT_DAEMON_GRPC, description="State, control and generation by token ids.")
    probes: int = Field(default=PORT_PROBES, description="The kubelet's probes.")
    run_dir: str = Field(default=RUN_DIR, description="Writable directory for the sockets between the two processes.")
    tls: TlsConfig | None = Field(default=None, description="Encrypts the HTTP port. Default: plain HTTP.")
    cors_origins: tuple[str, ...] | None = Field(
        default=None,
        description="Origins such as https://chat.example.org whose pages may read answers. `*` is any, and refused with `auth`.",
    )
    allowed_hosts: tuple[str, ...] | None = Field(
        default=None,
        description="Names in `Host` and `Origin` that are answered, beside localhost and addresses. Default: any. `serve` sets it.",
    )
    root_path: str | None = Field(
        default=None, description="Prefix such as /llm under which a proxy offers this replica, whether the proxy removes it or not."
    )
    ping_after: Duration | None = Field(
        default=None,
        description="Silence before its first token after which a stream begins with comments: from then on it cannot fail with a status. "
        "Absent: never.",
    )


class TokensConfig(_Section):
    """ServiceAccount tokens that the cluster issued for the audience `names.TOKEN_AUDIENCE`, verified offline."""

    jwks_file: str = Field(description="The cluster's public keys (a JWKS); read again when it changes.")
    issuer: str | None = Field(default=None, description="Accepted `iss`. Default: any.")
    subjects: dict[str, Literal["gateway", "operator", "metrics"]] = Field(
        default_factory=dict, description="system:serviceaccount:<namespace>:<name> → role; any other subject has none."
    )
    subjects_file: str | None = Field(
        default=None, description="A JSON file that takes the place of `subjects` while it exists; read again when it changes."
    )


class AuthConfig(_Section):
    """Who may call. Given, every route needs a known caller (but for /health, /version, /docs and the gRPC health service)."""

    keys_file: str | None = Field(
        default=None,
        description="Bearer keys: lines `<SHA-256 of a key in hex> [name [role=client|metrics|admin]]`; read again when it changes.",
    )
    tokens: TokensConfig | None = Field(default=None, description="ServiceAccount tokens. Default: none is accepted.")
    metrics_from: tuple[str, ...] = Field(default=(), description="Networks (CIDR) whose peers read /metrics without a token.")


class KvEventsConfig(_Section):
    """What becomes of KV blocks, published to third parties in vLLM's wire format. The events hold tenants' token ids."""

    port: int = Field(default=PORT_KV_EVENTS, description="ZMQ PUB; 0 for a free one.")
    replay_port: int = Field(default=PORT_KV_REPLAY, description="ZMQ ROUTER that sends again from a sequence number on; 0 for a free one.")
    topic: str = Field(default="", description="First part of every message.")
    buffer_batches: int = Field(default=10_000, ge=1, le=1_000_000, description="Latest batches kept for replay.")


class TracingConfig(_Section):
    """Spans to an OpenTelemetry collector, by OTLP over HTTP. Needs the extra `otel`. They have counts and times and no text."""

    endpoint: str | None = Field(
        default=None,
        pattern="^https?://",
        description="Address such as http://collector:4318/v1/traces. Default: OTEL_EXPORTER_OTLP_ENDPOINT and its like.",
    )
    service_name: str = Field(default="pagoda-daemon", description="`service.name` of the spans; OTEL_SERVICE_NAME overrules it.")


class SimulatedWorker(_Section):
    """A worker that computes nothing: token i of a request is a fixed function of its prompt, each step lasts a set time, or as long
    as `device` of the catalogue would take for the config.json in the model's directory."""

    step_ms: float = Field(default=1.0, ge=0, description="Length of a step in milliseconds.")
    device: str | None = Field(default=None, description="A device of the catalogue, whose speed is simulated instead of `stepMs`.")
    vocab_size: int = Field(default=256, ge=2, description="Token ids of the simulated model.")


class Fault(_Section):
    """What goes wrong, once. In the engine, in one step: the device hangs (hang), raises and recovers (error), raises and stays broken
    (fatal), answers one row with what is not finite (nan), raises for the prompt that begins there or next, however often it is tried
    (poison), or has no memory for it (oom), the engine process is gone (exit); or from that step on its tokens are wrong (wrong). In the
    front: its loop blocks (block), does so holding the interpreter's lock (freeze), or its detokeniser stands still (stall)."""

    kind: Literal["hang", "error", "fatal", "nan", "poison", "oom", "exit", "wrong", "block", "freeze", "stall"] = Field(
        description="What goes wrong."
    )
    at_step: int = Field(
        ge=0, description="Counted from 0: steps that compute a request; for block and freeze their outputs, for stall its decodings."
    )


class TestingConfig(_Section):
    """Never set by the operator for a served model."""

    simulated: SimulatedWorker | None = Field(default=None, description="A worker that computes nothing, in the place of the model.")
    faults: tuple[Fault, ...] = Field(default=(), description="What goes wrong, each once.")


class DaemonConfig(_Section):
    """What one replica runs."""

    version: Literal[1] = Field(default=1, description="The version of this format.")
    service: str = Field(default="", description="namespace/name of the service; empty when stand-alone.")
    revision: str = Field(default="", description="Hash of what this replica runs.")
    model: ModelConfig = Field(description="The model.")
    engine: EngineConfig = Field(default=EngineConfig(), description="Limits and numerics.")
    drain_timeout: Duration = Field(default="30s", description="Time that running requests have to finish when the replica ends.")
    adapters: AdaptersConfig | None = Field(default=None, description="LoRA adapters. Default: none.")
    health: HealthConfig | None = Field(default=None, description="When the replica calls itself broken. Default: as the fields say.")
    slo: SloConfig | None = Field(default=None, description="What goodput is counted against. Default: nothing.")
    listen: Listen = Field(default=Listen(), description="Where it listens.")
    auth: AuthConfig | None = Field(
        default=None, description="What callers must present. Absent: every client that reaches the ports may call."
    )
    kv_events: KvEventsConfig | None = Field(default=None, description="KV events over ZMQ. Default: off.")
    tracing: TracingConfig | None = Field(default=None, description="OpenTelemetry spans of requests. Default: off.")
    testing: TestingConfig | None = Field(default=None, description="For tests only.")

    def unknown_fields(self) -> tuple[str, ...]:
        """Dotted names that this version does not know or does not act on, for one warning at start."""
        return tuple(sorted(_unknown(self, "")))


def _unknown(section: _Section, prefix: str) -> list[str]:
    names = [prefix + name for name in section.model_extra or {}]
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if value is not None and field.json_schema_extra == {"later": True}:
            names.append(f"{prefix}{to_camel(name)}")
        elif isinstance(value, _Section):
            names += _unknown(value, f"{prefix}{to_camel(name)}.")
    return names
