"""Objects that the API server must refuse, one reason each, and objects that it must take: one table for the offline and the online tests.

A row edits a complete object of its kind at one place. `field` is the path that both verdicts must name, `says` a part of the API
server's message that tells what is accepted.
"""

from __future__ import annotations

import copy
import re
from typing import Any, NamedTuple

from pagoda_contracts.names import API_VERSION

GONE: Any = object()
Body = dict[str, Any]
SERVICE, ADAPTER, QUOTA, PROFILE = "InferenceService", "LoraAdapter", "TenantQuota", "ServingProfile"
CPU = {"cpu": {"cores": "250m", "memory": "2Gi"}}
DAY = {"name": "day", "start": "0 8 * * 1-5", "duration": "10h", "timeZone": "Europe/Berlin", "min": 2, "max": 6}
UP = {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [{"type": "Pods", "value": 4, "periodSeconds": 60}]}

FULL: dict[str, Body] = {
    SERVICE: {
        "replicas": 2,
        "model": {
            "uri": "hf://meta-llama/Llama-3.1-8B",
            "revision": "0e9e39f249a16976918f6564b8830bc894c89659",
            "servedNames": ["llama", "meta-llama/Llama-3.1-8B"],
            "credential": "hub",
            "cache": {"pvc": "models"},
        },
        "credentials": [{"name": "hub", "secretRef": {"name": "hub-token"}}],
        "accelerators": [
            {"gpu": {"product": "NVIDIA-H100-80GB-HBM3", "count": 4}, "fallbackAfter": "5m"},
            {"mig": {"profile": "3g.40gb"}},
            {"mig": {"minMemory": "40Gi"}},
            {"dra": {"deviceClassName": "mig.nvidia.com", "selectors": ["device.driver == 'gpu.nvidia.com'"], "count": 1}},
            CPU,
        ],
        "resources": {"cpu": "4", "memory": "16Gi", "ephemeralStorage": "40Gi"},
        "engine": {
            "maxModelLen": 8192,
            "maxConcurrency": 32,
            "minConcurrency": 8,
            "dtype": "bfloat16",
            "kvCache": {"size": "8Gi", "blockSize": 32, "dtype": "float8", "prefixCaching": False, "cpuOffload": "16Gi"},
            "quantization": "fp8",
            "deterministic": True,
            "tokenBudget": 1024,
            "toolParser": "hermes",
            "threads": 1,
            "loadTimeout": "10m",
        },
        "adapters": {
            "maxLoaded": 16,
            "maxRank": 32,
            "allowFrom": {"namespaces": "Selector", "selector": {"matchLabels": {"team": "blue"}}},
        },
        "scaling": {
            "mode": "Auto",
            "min": 0,
            "max": 8,
            "targets": {"queueDepth": 4, "kvUtilization": 0.8, "ttftP95": "800ms"},
            "idleAfter": "10m",
            "behavior": {
                "scaleUp": UP,
                "scaleDown": {"selectPolicy": "Min", "policies": [{"type": "Percent", "value": 10, "periodSeconds": 60}]},
            },
            "schedules": [DAY],
            "predictive": {"enabled": True, "horizon": "startupTime"},
        },
        "slo": {"ttft": "800ms", "itl": "50ms"},
        "clientKeys": {"name": "client-keys"},
        "rollout": {
            "strategy": "Surge",
            "canary": {
                "steps": [{"weight": 10, "hold": "10m"}, {"weight": 50, "hold": "10m"}],
                "abortOn": {"errorRate": "1%", "ttftP95": "2x"},
            },
        },
        "drain": {"timeout": "10m"},
        "health": {"progressTimeout": "120s", "deepProbeEvery": "30s"},
        "routing": {
            "policy": "PrefixAware",
            "hold": {"timeout": "10m", "maxRequests": 1000},
            "overflow": {"service": "small", "queueDepth": 8},
        },
        "profileRef": {"name": "h100"},
        "podTemplate": {"metadata": {"labels": {"team": "blue"}}},
    },
    ADAPTER: {
        "serviceRef": {"name": "llama", "namespace": "models"},
        "source": {"uri": "s3://bucket/adapters/support", "digest": f"sha256:{'0a' * 32}", "credential": "hub"},
        "modelName": "support",
        "placement": {"mode": "Replicas", "replicas": 2},
        "pinned": True,
    },
    QUOTA: {
        "subjects": {"namespaces": ["team-a", "team-b"], "apiKeysSecretRef": {"namespace": "team-a", "name": "keys"}},
        "models": ["llama", "support"],
        "limits": [{"window": "1m", "requests": 600, "tokens": 200000}, {"window": "24h", "tokens": 50000000}],
        "maxConcurrency": 64,
        "maxContextTokens": 32768,
        "maxOutputTokens": 4096,
        "modelNamespaces": ["team-a"],
        "defaultMaxTokens": 512,
        "devices": {"gpus": 8, "migSlices": [{"profile": "1g.10gb", "count": 7}]},
        "weight": 10,
        "priority": 5,
    },
    PROFILE: {
        "images": {"daemon": "registry.example/pagoda/daemon:0.2.0", "fetch": "registry.example/pagoda/fetch:0.2.0"},
        "args": ["--log-level=debug"],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "nodeSelector": {"nvidia.com/gpu.present": "true"},
        "priorityClassName": "serving",
        "runtimeClassName": "nvidia",
        "minCuda": "12.8",
        "devices": [{"nodeLabels": {"example.com/card": "a16"}, "product": "NVIDIA-A16", "memory": "16G"}],
        "nodeDeadline": "30m",
        "imagePullSecrets": [{"name": "registry"}],
        "sharedMemory": "8Gi",
        "podTemplate": {"spec": {"hostIPC": False}},
        "egress": [{"cidr": "10.20.0.0/16", "ports": [443, 9000]}, {"namespace": "storage"}],
        "allow": ["metadata.labels", "spec.nodeSelector"],
    },
}
MINIMAL: dict[str, Body] = {
    SERVICE: {"model": {"uri": "pvc://models/tiny"}, "accelerators": [CPU]},
    ADAPTER: {"serviceRef": {"name": "llama"}, "source": {"uri": "pvc://adapters/support"}},
    QUOTA: {"subjects": {"namespaces": ["team-a"]}},
    PROFILE: {"images": {"daemon": "daemon"}},
}


class Row(NamedTuple):
    """One edit of a complete object, and what the API server must say of it; `says` empty where it must take it."""

    kind: str
    edits: tuple[tuple[str, Any], ...]
    field: str = ""
    says: str = ""

    @property
    def title(self) -> str:
        """Names the row in test reports."""
        edits = ",".join(f"{path}={'absent' if value is GONE else str(value)[:24]}" for path, value in self.edits)
        return f"{self.kind}:{edits or 'as it is'}"

    def body(self, name: str) -> Body:
        """The object."""
        out = {"apiVersion": API_VERSION, "kind": self.kind, "metadata": {"name": name}, "spec": copy.deepcopy(FULL[self.kind])}
        for path, value in self.edits:
            edit(out, path, value)
        return out


def edit(body: Body, path: str, value: Any) -> None:
    """Sets or removes what stands at a path such as `spec.accelerators[0].cpu`; maps on the way are made."""
    steps = [int(index) if index else key for key, index in re.findall(r"([^.\[\]]+)(?!\])|\[(\d+)\]", path)]
    at: Any = body
    for step in steps[:-1]:
        at = at[step] if isinstance(step, int) else at.setdefault(step, {})
    if value is GONE:
        del at[steps[-1]]
    elif isinstance(at, list) and steps[-1] == len(at):
        at.append(copy.deepcopy(value))
    else:
        at[steps[-1]] = copy.deepcopy(value)


def bad(kind: str, path: str, value: Any, says: str, field: str = "") -> Row:
    """A row that must be refused, by default at the path that it edits."""
    return Row(kind, ((path, value),), field or path, says)


_PATTERN, _KIND, _UNKNOWN, _NEEDED, _INTEGER = (
    "should match '^",
    "supported values: ",
    "unknown field",
    "Required value",
    "must be of type integer",
)
_ACC, _KV, _SCALE = "spec.accelerators", "spec.engine.kvCache", "spec.scaling"
_QUANTITY = "must be a quantity above 0, such as 250m or 4Gi (2Gi, not 2GB)"
_URI = "must begin with pvc://, hf://, s3://, gs://, az://, oci:// or https://"
_DURATION = "must be a duration with ms, s, m or h, such as 800ms"


def _at_most(number: float) -> str:
    return f"should be less than or equal to {number}"


def _at_least(number: float) -> str:
    return f"should be greater than or equal to {number}"


_SERVICES = [
    bad(SERVICE, "spec.replicas", -1, _at_least(0)),
    bad(SERVICE, "spec.replicas", 1025, _at_most(1024)),
    bad(SERVICE, "spec.replicas", "2", _INTEGER),
    bad(SERVICE, "spec.replicas", 1.5, _INTEGER),
    bad(SERVICE, "spec.model", GONE, _NEEDED),
    bad(SERVICE, "spec.model.uri", GONE, _NEEDED),
    bad(SERVICE, "spec.model.uri", "meta-llama/Llama", _URI),
    bad(SERVICE, "spec.model.uri", "ftp://host/model", _URI),
    bad(SERVICE, "spec.model.uri", "pvc://Claim", _URI),
    bad(SERVICE, "spec.model.uri", "pvc://claim/../etc", _URI),
    bad(SERVICE, "spec.model.uri", "https://user:secret@host/model", _URI),
    bad(SERVICE, "spec.model.uri", "s3://bucket", _URI),
    bad(SERVICE, "spec.model.uri", "hf://" + "a/" * 300 + "b", "may not be more than 512"),
    bad(SERVICE, "spec.model.uri", 7, "must be of type string"),
    bad(SERVICE, "spec.model.revision", "main branch", _PATTERN),
    bad(SERVICE, "spec.model.revision", "", "should be at least 1 chars long"),
    bad(SERVICE, "spec.model.servedNames", "llama", "must be of type array"),
    bad(SERVICE, "spec.model.servedNames", ["llama", "llama"], "Duplicate value"),
    bad(SERVICE, "spec.model.servedNames", [f"n{i}" for i in range(17)], "must have at most 16 items"),
    bad(SERVICE, "spec.model.servedNames[0]", "a name", _PATTERN),
    bad(SERVICE, "spec.model.servedNames[0]", "n" * 129, "may not be more than 128"),
    bad(SERVICE, "spec.model.credential", "other", "must be a name in spec.credentials"),
    bad(SERVICE, "spec.model.cache", {}, _NEEDED, "spec.model.cache.pvc"),
    bad(SERVICE, "spec.model.cache.pvc", "Models", _PATTERN),
    bad(SERVICE, "spec.model.url", "hf://a/b", _UNKNOWN),
    bad(SERVICE, "spec.credentials[0].name", "Hub", _PATTERN),
    bad(SERVICE, "spec.credentials[0].secretRef", GONE, _NEEDED),
    bad(SERVICE, "spec.credentials[0].secretRef.name", "no_such", _PATTERN),
    bad(SERVICE, "spec.credentials[1]", {"name": "hub", "secretRef": {"name": "b"}}, "Duplicate value", "spec.credentials"),
    bad(SERVICE, _ACC, [], "should have at least 1 items"),
    bad(SERVICE, _ACC, GONE, _NEEDED),
    bad(SERVICE, _ACC, "cpu", "must be of type array"),
    bad(SERVICE, _ACC, CPU, "a list: begin each entry with '- ', such as '- cpu:'"),
    bad(SERVICE, _ACC, [CPU] * 9, "must have at most 8 items"),
    bad(SERVICE, f"{_ACC}[0]", {}, "exactly one kind; accepted: gpu, mig, dra, cpu"),
    bad(SERVICE, f"{_ACC}[0].cpu", CPU["cpu"], "exactly one kind; accepted: gpu, mig, dra, cpu", f"{_ACC}[0]"),
    bad(SERVICE, f"{_ACC}[0].tpu", {}, _UNKNOWN),
    bad(SERVICE, f"{_ACC}[0].gpu.count", 0, _at_least(1)),
    bad(SERVICE, f"{_ACC}[0].gpu.count", 17, _at_most(16)),
    bad(SERVICE, f"{_ACC}[0].gpu.product", "H100 80GB", _PATTERN),
    bad(SERVICE, f"{_ACC}[0].fallbackAfter", "5 minutes", _DURATION),
    bad(SERVICE, f"{_ACC}[1].mig.profile", "3g40gb", _PATTERN),
    bad(SERVICE, f"{_ACC}[1].mig.profile", GONE, "exactly one of profile and minMemory", f"{_ACC}[1].mig"),
    bad(SERVICE, f"{_ACC}[1].mig.minMemory", "40Gi", "exactly one of profile and minMemory", f"{_ACC}[1].mig"),
    bad(SERVICE, f"{_ACC}[2].mig.minMemory", "40GB", _QUANTITY),
    bad(SERVICE, f"{_ACC}[3].dra.deviceClassName", GONE, _NEEDED),
    bad(SERVICE, f"{_ACC}[3].dra.deviceClassName", "Mig", _PATTERN),
    bad(SERVICE, f"{_ACC}[3].dra.selectors", ["true"] * 9, "must have at most 8 items"),
    bad(SERVICE, f"{_ACC}[3].dra.selectors[0]", "x" * 1025, "may not be more than 1024"),
    bad(SERVICE, f"{_ACC}[4].cpu.cores", "two", _QUANTITY),
    bad(SERVICE, f"{_ACC}[4].cpu.cores", 0, _QUANTITY),
    bad(SERVICE, f"{_ACC}[4].cpu.cores", -2, _QUANTITY),
    bad(SERVICE, f"{_ACC}[4].cpu.memory", GONE, _NEEDED),
    bad(SERVICE, f"{_ACC}[4].cpu.memory", "0Gi", _QUANTITY),
    bad(SERVICE, f"{_ACC}[4].cpu.memory", "2 Gi", _QUANTITY),
    bad(SERVICE, "spec.engine.maxModelLen", 15, _at_least(16)),
    bad(SERVICE, "spec.engine.maxModelLen", 1048577, _at_most(1048576)),
    bad(SERVICE, "spec.engine.maxConcurrency", 0, _at_least(1)),
    bad(SERVICE, "spec.engine.maxConcurrency", 1025, _at_most(1024)),
    bad(SERVICE, "spec.engine.minConcurrency", 0, _at_least(1)),
    bad(SERVICE, "spec.engine.minConcurrency", 1024, "minConcurrency must be at most maxConcurrency"),
    bad(SERVICE, "spec.engine.dtype", "float16", _KIND),
    bad(SERVICE, "spec.engine.quantization", "awq", _KIND),
    bad(SERVICE, "spec.engine.deterministic", "yes", "must be of type boolean"),
    bad(SERVICE, "spec.engine.tensorParallel", 2, _UNKNOWN),
    bad(SERVICE, "spec.engine.tokenBudget", 15, _at_least(16)),
    bad(SERVICE, "spec.engine.tokenBudget", 131073, _at_most(131072)),
    bad(SERVICE, "spec.engine.toolParser", "hermess", _KIND),
    bad(SERVICE, "spec.engine.threads", 0, _at_least(1)),
    bad(SERVICE, "spec.engine.threads", 2, "engine.threads must be at most the cores of each cpu entry, rounded up"),
    bad(SERVICE, "spec.engine.loadTimeout", "10", _DURATION),
    bad(SERVICE, "spec.engine.loadTimeout", "29s", "engine.loadTimeout must be 30s to 12h"),
    bad(SERVICE, "spec.engine.loadTimeout", "13h", "engine.loadTimeout must be 30s to 12h"),
    bad(SERVICE, f"{_KV}.size", "lots", _QUANTITY),
    bad(SERVICE, f"{_KV}.blockSize", 8, _KIND),
    bad(SERVICE, f"{_KV}.dtype", "fp8", _KIND),
    bad(SERVICE, f"{_KV}.memoryFraction", 0.9, "at most one of size and memoryFraction"),
    Row(SERVICE, ((f"{_KV}.size", GONE), (f"{_KV}.memoryFraction", 1.5)), f"{_KV}.memoryFraction", _at_most(1)),
    Row(SERVICE, ((f"{_KV}.size", GONE), (f"{_KV}.memoryFraction", 0)), f"{_KV}.memoryFraction", "above 0 and at most 1"),
    bad(SERVICE, f"{_KV}.prefixCaching", 1, "must be of type boolean"),
    bad(SERVICE, f"{_KV}.cpuOffload", "-1Gi", _QUANTITY),
    bad(SERVICE, "spec.adapters.maxLoaded", 0, _at_least(1)),
    bad(SERVICE, "spec.adapters.maxRank", 48, _KIND),
    bad(SERVICE, "spec.adapters.allowFrom.namespaces", "All", _KIND),
    bad(SERVICE, "spec.adapters.allowFrom.namespaces", "Same", "needed with namespaces Selector", "spec.adapters.allowFrom.selector"),
    bad(SERVICE, "spec.adapters.allowFrom.selector", GONE, "needed with namespaces Selector"),
    bad(SERVICE, "spec.adapters.allowFrom.selector.matchLabels", {}, "should have at least 1 properties"),
    bad(SERVICE, f"{_SCALE}.mode", "HPA", _KIND),
    bad(SERVICE, f"{_SCALE}.min", 9, "min must be at most max"),
    bad(SERVICE, f"{_SCALE}.min", -1, _at_least(0)),
    bad(SERVICE, f"{_SCALE}.max", 1025, _at_most(1024)),
    bad(SERVICE, f"{_SCALE}.max", GONE, "mode Auto needs max"),
    bad(SERVICE, f"{_SCALE}.min", 1, "idleAfter needs min 0", f"{_SCALE}.idleAfter"),
    bad(SERVICE, f"{_SCALE}.idleAfter", "10", _DURATION),
    bad(SERVICE, f"{_SCALE}.targets.queueDepth", 0, _at_least(1)),
    bad(SERVICE, f"{_SCALE}.targets.kvUtilization", 80, _at_most(1)),
    bad(SERVICE, f"{_SCALE}.targets.kvUtilization", 0, "above 0 and at most 1"),
    bad(SERVICE, f"{_SCALE}.targets.kvUtilization", "0.8", "must be of type number"),
    bad(SERVICE, f"{_SCALE}.targets.ttftP95", "0.8", _DURATION),
    bad(SERVICE, f"{_SCALE}.behavior.scaleUp.selectPolicy", "Avg", _KIND),
    bad(SERVICE, f"{_SCALE}.behavior.scaleUp.stabilizationWindowSeconds", 3601, _at_most(3600)),
    bad(SERVICE, f"{_SCALE}.behavior.scaleUp.policies[0].type", "Replicas", _KIND),
    bad(SERVICE, f"{_SCALE}.behavior.scaleUp.policies[0].value", 0, _at_least(1)),
    bad(SERVICE, f"{_SCALE}.behavior.scaleDown.policies[0].periodSeconds", 1801, _at_most(1800)),
    bad(SERVICE, f"{_SCALE}.schedules[0].start", "8 o'clock", "should match"),
    bad(SERVICE, f"{_SCALE}.schedules[0].duration", GONE, _NEEDED),
    bad(SERVICE, f"{_SCALE}.schedules[0].timeZone", "+02:00", _PATTERN),
    bad(SERVICE, f"{_SCALE}.schedules[0].min", 7, "min must be at most max"),
    bad(SERVICE, f"{_SCALE}.schedules[1]", DAY, "Duplicate value", f"{_SCALE}.schedules"),
    bad(SERVICE, f"{_SCALE}.predictive.horizon", "soon", "must be startupTime or a duration"),
    bad(SERVICE, "spec.slo.ttft", "fast", _DURATION),
    bad(SERVICE, "spec.slo.tpot", "50ms", _UNKNOWN),
    bad(SERVICE, "spec.rollout.strategy", "BlueGreen", _KIND),
    bad(SERVICE, "spec.rollout.strategy", "Replace", "canary needs strategy Auto or Surge", "spec.rollout.canary"),
    bad(SERVICE, "spec.rollout.canary.steps", [], "should have at least 1 items"),
    bad(SERVICE, "spec.rollout.canary.steps[0].weight", 101, _at_most(100)),
    bad(SERVICE, "spec.rollout.canary.steps[0].weight", 60, "weights of steps must not fall", "spec.rollout.canary.steps"),
    bad(SERVICE, "spec.rollout.canary.abortOn.errorRate", "0.01", _PATTERN),
    bad(SERVICE, "spec.rollout.canary.abortOn.ttftP95", "twice", "must be a multiple such as 2x, or a duration"),
    bad(SERVICE, "spec.drain.timeout", "61m", "at most 1h"),
    bad(SERVICE, "spec.drain.timeout", 30, "must be of type string"),
    bad(SERVICE, "spec.health.progressTimeout", "500ms", "1s to 1h"),
    bad(SERVICE, "spec.health.deepProbeEvery", "2h", "1s to 1h"),
    bad(SERVICE, "spec.routing.policy", "RoundRobin", _KIND),
    bad(SERVICE, "spec.routing.hold.maxRequests", -1, _at_least(0)),
    bad(SERVICE, "spec.routing.overflow.service", GONE, "name one of service and target", "spec.routing.overflow"),
    bad(SERVICE, "spec.routing.overflow.target", "hosted", "name one of service and target", "spec.routing.overflow"),
    bad(SERVICE, "spec.routing.overflow.after", "61m", "at most 1h"),
    bad(SERVICE, "spec.profileRef.name", "H100", _PATTERN),
    bad(SERVICE, "spec.podTemplate", "x", "must be of type object"),
    bad(SERVICE, "spec.minReplicas", 1, _UNKNOWN),
    bad(SERVICE, "spec", GONE, _NEEDED),
    bad(SERVICE, "metadata.name", "n" * 36, "at most 35 characters", "metadata.name"),
    bad(SERVICE, "metadata.name", "7b-llama", "a letter first", "metadata.name"),
    bad(SERVICE, "metadata.name", "llama.tiny", "a letter first", "metadata.name"),
    bad(SERVICE, "metadata.name", "Llama", "RFC 1123 subdomain", "metadata.name"),
]
_ADAPTERS = [
    bad(ADAPTER, "spec.serviceRef", GONE, _NEEDED),
    bad(ADAPTER, "spec.serviceRef.name", "Llama", _PATTERN),
    bad(ADAPTER, "spec.serviceRef.namespace", "a.b", _PATTERN),
    bad(ADAPTER, "spec.source.uri", GONE, _NEEDED),
    bad(ADAPTER, "spec.source.uri", "/mnt/adapter", _URI),
    bad(ADAPTER, "spec.source.digest", "sha256:beef", _PATTERN),
    bad(ADAPTER, "spec.modelName", "my adapter", _PATTERN),
    bad(ADAPTER, "spec.placement.mode", "Always", _KIND),
    bad(ADAPTER, "spec.placement.mode", "Eager", "needed with mode Replicas", "spec.placement.replicas"),
    bad(ADAPTER, "spec.placement.replicas", GONE, "needed with mode Replicas"),
    bad(ADAPTER, "spec.placement.replicas", 0, _at_least(1)),
    bad(ADAPTER, "spec.pinned", "true", "must be of type boolean"),
    bad(ADAPTER, "spec.rank", 16, _UNKNOWN),
]
_QUOTAS = [
    bad(QUOTA, "spec.subjects", {}, "at least one of namespaces and apiKeysSecretRef"),
    bad(QUOTA, "spec.subjects.namespaces", ["a", "a"], "Duplicate value"),
    bad(QUOTA, "spec.subjects.namespaces[0]", "Team", _PATTERN),
    bad(QUOTA, "spec.subjects.apiKeysSecretRef.namespace", GONE, _NEEDED),
    bad(QUOTA, "spec.models[0]", "*", _PATTERN),
    bad(QUOTA, "spec.limits[0].window", "100ms", "1s to 720h"),
    bad(QUOTA, "spec.limits[0].window", "721h", "1s to 720h"),
    bad(QUOTA, "spec.limits[0].window", "minute", _PATTERN),
    bad(QUOTA, "spec.limits[0].window", "24h", "Duplicate value", "spec.limits"),
    bad(QUOTA, "spec.limits[1].tokens", GONE, "sets requests, tokens or both", "spec.limits[1]"),
    bad(QUOTA, "spec.limits[0].requests", -1, _at_least(0)),
    bad(QUOTA, "spec.maxConcurrency", 0, _at_least(1)),
    bad(QUOTA, "spec.maxContextTokens", 1048577, _at_most(1048576)),
    bad(QUOTA, "spec.defaultMaxTokens", 8192, "must be at most maxOutputTokens"),
    bad(QUOTA, "spec.devices.gpus", -1, _at_least(0)),
    bad(QUOTA, "spec.devices.gpus", 100001, _at_most(100000)),
    bad(QUOTA, "spec.devices.gpus", 1.5, "should be a multiple of 1"),
    bad(QUOTA, "spec.devices.gpus", "8", "may not be more than 0"),
    bad(QUOTA, "spec.devices.gpus", "", "should be at least 1 chars long"),
    bad(QUOTA, "spec.devices.gpus", [], "should have at least 1 items"),
    bad(QUOTA, "spec.devices.gpus", ["H100"], "must have at most 0 items"),
    bad(QUOTA, "spec.devices.gpus", {}, "should have at least 1 properties"),
    bad(QUOTA, "spec.devices.gpus", {"H100": -1}, _at_least(0), "spec.devices.gpus.H100"),
    bad(QUOTA, "spec.devices.gpus", {"H100": "8"}, _INTEGER, "spec.devices.gpus.H100"),
    bad(QUOTA, "spec.devices.migSlices[0].profile", "small", _PATTERN),
    bad(QUOTA, "spec.devices.migSlices[1]", {"profile": "1g.10gb", "count": 1}, "Duplicate value", "spec.devices.migSlices"),
    bad(QUOTA, "spec.devices.resourceQuota", True, "needs exactly one of subjects.namespaces", "spec.devices"),
    bad(QUOTA, "spec.weight", 0, _at_least(1)),
    bad(QUOTA, "spec.priority", 1001, _at_most(1000)),
    bad(QUOTA, "spec.burst", 2, _UNKNOWN),
]
_PROFILES = [
    bad(PROFILE, "spec.images", GONE, _NEEDED),
    bad(PROFILE, "spec.images.daemon", GONE, _NEEDED),
    bad(PROFILE, "spec.images.daemon", "an image", _PATTERN),
    bad(PROFILE, "spec.args[0]", "", "should be at least 1 chars long"),
    bad(PROFILE, "spec.tolerations[0].operator", "In", _KIND),
    bad(PROFILE, "spec.tolerations[0].value", "x", "refused with operator Exists"),
    bad(
        PROFILE, "spec.tolerations[0]", {"operator": "Equal", "value": "x"}, "key is needed with operator Equal", "spec.tolerations[0].key"
    ),
    bad(PROFILE, "spec.tolerations[0].tolerationSeconds", 30, "needs effect NoExecute"),
    bad(PROFILE, "spec.nodeSelector", {"a": "b c"}, _PATTERN, "spec.nodeSelector.a"),
    bad(PROFILE, "spec.nodeSelector", {"a": True}, "must be of type string", "spec.nodeSelector.a"),
    bad(PROFILE, "spec.priorityClassName", "High", _PATTERN),
    bad(PROFILE, "spec.imagePullSecrets[0]", {}, _NEEDED, "spec.imagePullSecrets[0].name"),
    bad(PROFILE, "spec.sharedMemory", "8GB", _QUANTITY),
    bad(PROFILE, "spec.devices[0].nodeLabels", {}, "should have at least 1 properties"),
    bad(PROFILE, "spec.devices[0].product", GONE, _NEEDED),
    bad(PROFILE, "spec.devices[0].memory", "16GB", _QUANTITY),
    bad(PROFILE, "spec.nodeDeadline", "an hour", _DURATION),
    bad(PROFILE, "spec.egress[0].cidr", "10.20.0.1/16", "zeros after its length"),
    bad(PROFILE, "spec.egress[0].cidr", "10.20.0.0", _PATTERN),
    bad(PROFILE, "spec.egress[0].cidr", "300.0.0.0/8", "zeros after its length"),
    bad(PROFILE, "spec.egress[0].namespace", "storage", "exactly one of cidr and namespace", "spec.egress[0]"),
    bad(PROFILE, "spec.egress[0].ports", [], "should have at least 1 items"),
    bad(PROFILE, "spec.egress[0].ports[0]", 65536, _at_most(65535)),
    bad(PROFILE, "spec.allow[0]", ".metadata", _PATTERN),
    bad(PROFILE, "spec.allow", "metadata", "must be of type array"),
]
INVALID = [*_SERVICES, *_ADAPTERS, *_QUOTAS, *_PROFILES]


def good(kind: str, *edits: tuple[str, Any]) -> Row:
    """A row that must be taken."""
    return Row(kind, edits)


VALID = [
    *(good(kind) for kind in FULL),
    *(good(kind, ("spec", MINIMAL[kind])) for kind in FULL),
    good(QUOTA, ("spec.devices.gpus", {"H100": 8, "A100-SXM4-80GB": 0})),
    good(SERVICE, ("spec.replicas", 0)),
    good(SERVICE, ("spec.replicas", 1024)),
    good(SERVICE, ("spec.replicas", GONE)),
    good(SERVICE, ("spec.model.uri", "pvc://models")),
    good(SERVICE, ("spec.model.uri", "pvc://models/a/b-c/v1.2")),
    good(SERVICE, ("spec.model.uri", "s3://bucket.with.dots/llama/v1")),
    good(SERVICE, ("spec.model.uri", "https://host:8443/models/tiny")),
    good(SERVICE, ("spec.model.uri", "oci://registry.example/models/tiny")),
    good(SERVICE, ("spec.model.servedNames", [])),
    good(SERVICE, ("spec.model.credential", GONE), ("spec.credentials", GONE)),
    good(SERVICE, ("spec.accelerators", [{"cpu": {"cores": 2, "memory": 2147483648}}])),
    good(SERVICE, ("spec.accelerators", [{"cpu": {"cores": "0.5", "memory": "1.5Gi"}}])),
    good(SERVICE, ("spec.accelerators", [{"gpu": {}}])),
    good(SERVICE, ("spec.accelerators", [{"mig": {"profile": "1g.5gb+me"}}, {"mig": {"profile": "1g.5gb.me"}}])),
    good(SERVICE, ("spec.accelerators", [CPU] * 8)),
    good(SERVICE, ("spec.engine", {})),
    good(SERVICE, ("spec.engine", {"threads": 3, "loadTimeout": "12h"}), ("spec.accelerators", [{"cpu": {"cores": 3, "memory": "1Gi"}}])),
    good(SERVICE, ("spec.engine", {"threads": 3}), ("spec.accelerators", [{"cpu": {"cores": "2100m", "memory": "1Gi"}}, {"gpu": {}}])),
    good(SERVICE, ("spec.engine.kvCache", {"memoryFraction": 0.9})),
    good(SERVICE, ("spec.engine.kvCache", {"memoryFraction": 1})),
    good(SERVICE, ("spec.engine.maxModelLen", GONE)),
    good(SERVICE, ("spec.adapters", {})),
    good(SERVICE, ("spec.adapters", {"allowFrom": {"namespaces": "Same"}})),
    good(SERVICE, ("spec.scaling", {})),
    good(SERVICE, ("spec.scaling", {"mode": "External"})),
    good(SERVICE, ("spec.scaling", {"mode": "Auto", "max": 1})),
    good(SERVICE, ("spec.scaling", {"mode": "Auto", "min": 3, "max": 3})),
    good(SERVICE, ("spec.scaling.predictive.horizon", "5m")),
    good(SERVICE, ("spec.scaling.schedules[1]", DAY | {"name": "night"})),
    good(SERVICE, ("spec.rollout", {})),
    good(SERVICE, ("spec.rollout", {"strategy": "Replace"})),
    good(SERVICE, ("spec.rollout.canary.steps", [{"weight": 100, "hold": "1h30m"}])),
    good(SERVICE, ("spec.rollout.canary.abortOn", {"errorRate": "100%", "ttftP95": "1500ms"})),
    good(SERVICE, ("spec.drain.timeout", "1h")),
    good(SERVICE, ("spec.routing", {})),
    good(SERVICE, ("spec.podTemplate", {"spec": {"anything": [1, {"two": None}]}})),
    good(SERVICE, ("spec.slo", {})),
    good(SERVICE, ("spec.replicas", None)),
    good(ADAPTER, ("spec.placement", {"mode": "Eager"})),
    good(ADAPTER, ("spec.placement", GONE)),
    good(ADAPTER, ("spec.source.digest", GONE)),
    good(QUOTA, ("spec.limits", [])),
    good(QUOTA, ("spec.limits[0].tokens", 0)),
    good(QUOTA, ("spec.devices", {})),
    good(QUOTA, ("spec.devices", {"gpus": 8, "resourceQuota": True}), ("spec.subjects.namespaces", ["one"])),
    good(QUOTA, ("spec.priority", -1000)),
    good(PROFILE, ("spec.tolerations", [{"operator": "Exists"}])),
    good(PROFILE, ("spec.nodeSelector", {"zone": ""})),
    good(PROFILE, ("spec.sharedMemory", 1073741824)),
    good(PROFILE, ("spec.egress", [{"cidr": "::/0"}, {"cidr": "0.0.0.0/0"}, {"cidr": "fd00:1::/32"}, {"cidr": "192.0.2.7/32"}])),
]
