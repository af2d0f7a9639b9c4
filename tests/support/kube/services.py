"""InferenceServices for tests."""

from __future__ import annotations

from pagoda_contracts.names import API_VERSION


def service(name: str, **spec: object) -> dict[str, object]:
    """The quickstart's service under another name."""
    accelerators = [{"cpu": {"cores": "250m", "memory": "2Gi"}}]
    engine = {"maxModelLen": 256, "maxConcurrency": 64, "dtype": "float32"}
    base = {"model": {"uri": f"pvc://{name}", "servedNames": [name]}, "accelerators": accelerators, "engine": engine}
    return {"apiVersion": API_VERSION, "kind": "InferenceService", "metadata": {"name": name}, "spec": base | spec}
