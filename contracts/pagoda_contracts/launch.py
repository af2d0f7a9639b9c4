"""DaemonConfig: the operator writes it with the class the daemon reads it with, so that no flag can drift.

It lives in a ConfigMap under `names.DAEMON_CONFIG_KEY`. Fields are only added; unknown ones are kept and warned of (version skew).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from pagoda_contracts.names import PORT_DAEMON_GRPC, PORT_DAEMON_HTTP, PORT_PROBES, RUN_DIR
from pagoda_contracts.units import Duration


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow", alias_generator=to_camel, populate_by_name=True)


def _later(description: str) -> Any:
    """A field that daemons of this version know and do not act on: set, it is warned of like an unknown one."""
    return Field(default=None, description=description, json_schema_extra={"later": True})


class ModelConfig(_Section):
    """Where the model's files are in the pod, and the names it answers to."""

    path: str
    served_names: Annotated[tuple[str, ...], Field(min_length=1)]


class EngineConfig(_Section):
    """Limits and numerics. Absent means: resolved by the daemon from the model and the cgroup."""

    max_model_len: int | None = None
    max_concurrency: int = 64
    token_budget: int = Field(default=512, ge=16, description="Tokens computed per step: all decodes first, then prefill chunks.")
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    block_size: int = 16
    kv_bytes: int | None = Field(default=None, ge=1, description="Bytes for KV blocks.")
    threads: int | None = Field(default=None, ge=1, description="Compute threads; the cores that the cgroup grants where absent.")
    quantization: Literal["fp8", "int8", "int4", "nvfp4"] | None = Field(
        default=None, description="Type of the weights' matrices; the model's own where absent. int8 is built, the others are refused."
    )
    deterministic: bool | None = Field(default=None, description="Same answer whatever else is in the batch.")
    prefix_caching: bool | None = Field(default=None, description="Whether blocks of equal beginnings are shared; true where absent.")
    kv_dtype: Literal["bfloat16", "float8", "int8"] | None = _later("Type of keys and values.")
    kv_memory_fraction: float | None = _later("Share of the device's memory for weights and KV.")
    cpu_offload_bytes: int | None = _later("Host memory for evicted blocks, in bytes.")
    tensor_parallel: int | None = _later("Devices over which each layer is spread.")


class AdaptersConfig(_Section):
    """LoRA adapters; the catalogue itself comes by SetAdapters."""

    max_loaded: int = Field(default=8, ge=1, description="Adapters resident at the same time.")
    max_rank: int = Field(default=64, ge=1, description="Largest rank taken.")


class HealthConfig(_Section):
    """When the replica calls itself broken."""

    progress_timeout: Duration = "120s"
    deep_probe_every: Duration = "30s"


class Listen(_Section):
    """Addresses; port 0 lets the kernel choose (stand-alone and tests)."""

    host: str = "0.0.0.0"
    http: int = PORT_DAEMON_HTTP
    grpc: int = PORT_DAEMON_GRPC
    probes: int = PORT_PROBES
    run_dir: str = RUN_DIR


class SimulatedWorker(_Section):
    """A worker that computes nothing: token i of a request is a fixed function of its prompt, each step lasts a set time, or as long
    as `device` of the catalogue would take for the config.json in the model's directory."""

    step_ms: float = Field(default=1.0, ge=0)
    device: str | None = None
    vocab_size: int = Field(default=256, ge=2)


class Fault(_Section):
    """What goes wrong in one step, once: the device hangs (hang), raises and recovers (error), raises and stays broken (fatal), answers
    one row with what is not finite (nan), or the engine process is gone (exit)."""

    kind: Literal["hang", "error", "fatal", "nan", "exit"]
    at_step: int = Field(ge=0, description="Counted from the first step that was asked for.")


class TestingConfig(_Section):
    """Never set by the operator for a served model."""

    simulated: SimulatedWorker | None = None
    faults: tuple[Fault, ...] = ()


class DaemonConfig(_Section):
    """What one replica runs."""

    version: Literal[1] = 1
    service: str = Field(default="", description="namespace/name of the service; empty when stand-alone.")
    revision: str = Field(default="", description="Hash of what this replica runs.")
    model: ModelConfig
    engine: EngineConfig = EngineConfig()
    drain_timeout: Duration = "30s"
    adapters: AdaptersConfig | None = _later("LoRA adapters; none where absent.")
    health: HealthConfig | None = _later("When the replica calls itself broken.")
    listen: Listen = Listen()
    testing: TestingConfig | None = None

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
