"""The labels that GPU Feature Discovery and mig-manager would put on a node of a class. Pure.

As GFD does: under `single` the whole-GPU labels describe slices; under `mixed` they go on describing GPUs, and each profile has its own.
"""

from pagoda_devcluster.gpus.devices import plain
from pagoda_devcluster.gpus.layout import Engines, NodeClass, Product, Profile, slices_of

NVIDIA = "nvidia.com/"


def labels_of(node: NodeClass) -> dict[str, str]:
    """Every value a string; classes without GPUs, or without discovery of them, have their own labels only."""
    if node.gpu is None or not node.discovery:
        return dict(node.labels)
    named = gpu_labels(node, node.gpu) | version_labels(node.gpu) | mig_labels(node, node.gpu)
    return {NVIDIA + key: value for key, value in named.items()} | node.labels


def gpu_labels(node: NodeClass, gpu: Product) -> dict[str, str]:
    common = {
        "gpu.present": "true",
        "gpu.family": gpu.family,
        "gpu.machine": node.machine,
        "gpu.replicas": "1",
        "gpu.mode": "compute",
        "gpu.sharing-strategy": "none",
        "mig.capable": "true" if gpu.mig_profiles else "false",
        "mps.capable": "false",
    }
    if node.mig_strategy == "single":
        return common | single_labels(node, gpu)
    count = sum(group.count for group in node.gpus)
    return common | {"gpu.product": gpu.product, "gpu.count": str(count), "gpu.memory": str(gpu.memory_mib)}


def single_labels(node: NodeClass, gpu: Product) -> dict[str, str]:
    ((name, _),) = node.gpus[0].partitions.items()
    count = sum(group.count * group.partitions[name] for group in node.gpus)
    return slice_labels("gpu", gpu, name, count)


def slice_labels(prefix: str, gpu: Product, name: str, count: int) -> dict[str, str]:
    profile = gpu.mig_profiles[name]
    described = {
        "product": f"{gpu.product}-MIG-{plain(name)}",
        "count": str(count),
        "memory": str(profile.memory_mib),
        "multiprocessors": str(profile.multiprocessors),
        "replicas": "1",
        "slices.gi": str(slices_of(name)),
        "slices.ci": str(slices_of(name)),
    } | engine_labels(profile)
    return {f"{prefix}.{key}": value for key, value in described.items()}


def engine_labels(profile: Profile) -> dict[str, str]:
    return {f"engines.{name}": str(count) for name, count in engine_counts(profile.engines).items()}


def engine_counts(engines: Engines) -> dict[str, int]:
    return engines.model_dump(by_alias=True)


def version_labels(gpu: Product) -> dict[str, str]:
    """Both spellings of the versions: GFD writes the old ones still."""
    driver, runtime, compute = gpu.driver.split("."), gpu.cuda.split("."), gpu.compute.split(".")
    return {
        "gpu.compute.major": compute[0],
        "gpu.compute.minor": compute[1],
        "cuda.driver-version.full": gpu.driver,
        "cuda.driver-version.major": driver[0],
        "cuda.driver-version.minor": driver[1],
        "cuda.driver-version.revision": driver[2] if len(driver) > 2 else "",
        "cuda.runtime-version.full": gpu.cuda,
        "cuda.runtime-version.major": runtime[0],
        "cuda.runtime-version.minor": runtime[1],
    }


def mig_labels(node: NodeClass, gpu: Product) -> dict[str, str]:
    if not gpu.mig_profiles:
        return {}
    labels = {"mig.strategy": node.mig_strategy, "mig.config": node.mig_config, "mig.config.state": node.mig_state}
    if node.mig_strategy == "mixed":
        for name, count in mixed_counts(node).items():
            labels |= slice_labels(f"mig-{plain(name)}", gpu, name, count)
    return labels


def mixed_counts(node: NodeClass) -> dict[str, int]:
    counts: dict[str, int] = {}
    for group in node.gpus:
        for name, count in group.partitions.items():
            counts[name] = counts.get(name, 0) + group.count * count
    return counts
