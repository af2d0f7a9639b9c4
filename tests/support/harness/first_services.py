"""Clusters as providers make them × first services: which nodes take each, now or once a pool without nodes gets its first one, and what is
missing for the others. Unit tests play all of it with our own judge (platforms.py), cluster tests what has pods with the real scheduler
(fleets.py)."""

from __future__ import annotations

from typing import NamedTuple

from support.harness.harness import Harness
from support.harness.inventories import CPU, Body, dra_of, gpu, mig
from support.harness.platforms import default_profile, first_service

ANY = gpu()
RTX = {"nodeLabels": {"node.kubernetes.io/instance-type": "k3s"}, "product": "GeForce-RTX-4090", "memory": "24G"}
WHOLE_H100 = dra_of("gpu.nvidia.com", "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA-H100-80GB-HBM3'")


class First(NamedTuple):
    """A service with one entry on a cluster. `where`: the classes of its layout whose nodes take a replica. `devices`: of the profile."""

    cluster: str
    entry: Body
    where: tuple[str, ...]
    devices: tuple[Body, ...] = ()

    @property
    def title(self) -> str:
        ((kind, asked),) = ((key, value) for key, value in self.entry.items() if key in ("cpu", "gpu", "mig", "dra"))
        words = [asked[key] for key in ("product", "profile", "minMemory", "deviceClassName") if key in asked]
        return "-".join([self.cluster.rpartition("/")[2], kind, *words, *["selected"] * bool(asked.get("selectors"))])

    def service(self) -> Harness:
        """As far as it comes without a kubelet."""
        return first_service(self.cluster, self.entry, profile=default_profile(devices=list(self.devices)))


PLACED = [
    First("platforms/gke", gpu("L4"), ("l4",)),
    First("platforms/gke", gpu("A100"), ("a100",)),
    First("platforms/gke", gpu("H100"), ("h100",)),
    First("platforms/gke", ANY, ("l4", "a100", "h100")),
    First("platforms/gke", mig("3g.40gb"), ("mig",)),
    First("platforms/gke", mig(least="40Gi"), ("mig",)),
    First("platforms/eks-karpenter", gpu("L4"), ("l4",)),
    First("platforms/eks-karpenter", gpu("RTX-PRO-6000"), ("new",)),
    First("platforms/eks-karpenter", ANY, ("l4", "new")),
    First("platforms/eks-auto-mode", gpu("L4"), ("l4",)),
    First("platforms/eks-auto-mode", gpu("RTX-PRO-4500"), ("new",)),
    First("platforms/eks-auto-mode", ANY, ("l4", "new")),
    First("platforms/eks-managed", gpu("A10G"), ("a10g",)),
    First("platforms/eks-managed", ANY, ("a10g",)),
    First("platforms/aks", gpu("A100"), ("a100",)),
    First("platforms/aks", ANY, ("a100",)),
    First("platforms/gpu-operator", gpu("H100"), ("h100",)),
    First("platforms/gpu-operator", ANY, ("h100",)),
    First("platforms/openshift", gpu("L40S"), ("l40s",)),
    First("platforms/openshift", ANY, ("l40s",)),
    First("platforms/openshift", mig("3g.40gb"), ("h100",)),
    First("platforms/openshift", mig(least="10Gi"), ("h100",)),
    First("platforms/coreweave", gpu("H100"), ("h100",)),
    First("platforms/coreweave", ANY, ("h100",)),
    First("platforms/k3s-workstation", gpu("RTX-4090"), ("rtx4090",), (RTX,)),
    First("platforms/k3s-workstation", ANY, ("rtx4090",), (RTX,)),
    First("platforms/dra", dra_of("gpu.nvidia.com"), ("h100",)),
    First("platforms/dra", WHOLE_H100, ("h100",)),
    First("platforms/dra", dra_of("mig.nvidia.com"), ("slices",)),
    First("platforms/cpu", CPU, ("cpu",)),
    First("h100-mixed", gpu("H100"), ("h100-mixed", "h100-whole")),
    First("h100-mixed", mig("1g.10gb"), ("h100-mixed",)),
    First("a100-single", mig(least="10G"), ("a100-slices",)),
]
# With what the service says that its pods ask for.
WAITING = [
    (First("platforms/gke-zero", gpu("L4"), ("l4",)), "cloud.google.com/gke-accelerator=nvidia-l4"),
    (First("platforms/gke-zero", mig("3g.20gb"), ("mig",)), "cloud.google.com/gke-gpu-partition-size=3g.20gb"),
    (First("platforms/gke-autopilot", gpu("H100"), ("h100",)), "cloud.google.com/gke-accelerator=nvidia-h100-80gb|nvidia-h100-mega-80gb"),
    (First("platforms/gke-autopilot", gpu("L4"), ("l4",)), "cloud.google.com/gke-accelerator=nvidia-l4"),
    (First("platforms/eks-zero", gpu("H100"), ("h100",)), "node.kubernetes.io/instance-type=p5.4xlarge|p5.48xlarge"),
    (First("platforms/eks-auto-mode", gpu("H100"), ()), "node.kubernetes.io/instance-type=p5.4xlarge|p5.48xlarge"),
    (First("platforms/coreweave", gpu("A100"), ()), "gpu.nvidia.com/model=A100_NVLINK_80GB"),
    (First("platforms/openshift", gpu("H100"), ()), "nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3|NVIDIA-H100-PCIe|NVIDIA-H100-NVL"),
    (First("platforms/cpu", gpu("L4"), ()), "nvidia.com/gpu.product=NVIDIA-L4"),
    (First("platforms/cpu", mig("1g.10gb"), ()), "1 nvidia.com/mig-1g.10gb"),
    (First("platforms/dra", gpu("H100"), ()), "offered: devices of the DRA driver gpu.nvidia.com, for which an entry must be dra"),
    (First("platforms/amd", gpu("H200"), ()), "nvidia.com/gpu.product=NVIDIA-H200"),
    (First("platforms/intel", gpu("L4"), ()), "nvidia.com/gpu.product=NVIDIA-L4"),
    (First("platforms/gke-tpu", gpu("L4"), ()), "cloud.google.com/gke-accelerator=nvidia-l4"),
    (First("platforms/eks-neuron", gpu("L40S"), ()), "node.kubernetes.io/instance-type=g6e.xlarge|g6e.2xlarge"),
]
MISSING = [
    ("platforms/amd", ANY, "AMD devices (amd.com/gpu), for which Pagoda has no daemon yet"),
    ("platforms/amd", gpu("MI300X"), "AMD devices (amd.com/gpu), for which Pagoda has no daemon yet"),
    ("platforms/intel", ANY, "Flex-170: Intel devices (gpu.intel.com/i915), for which Pagoda has no daemon yet"),
    ("platforms/intel", gpu("Flex-170"), "Flex-170: Intel devices (gpu.intel.com/i915), for which Pagoda has no daemon yet"),
    ("platforms/intel", gpu("Arc-Pro-B60"), "Arc-Pro-B60: Intel devices (gpu.intel.com/xe), for which Pagoda has no daemon yet"),
    ("platforms/gke-tpu", ANY, "tpu-v6e-slice: Google TPU devices (google.com/tpu), for which Pagoda has no daemon yet"),
    ("platforms/gke-tpu", gpu("TPU-v6e"), "tpu-v6e-slice: Google TPU devices (google.com/tpu), for which Pagoda has no daemon yet"),
    ("platforms/eks-neuron", ANY, "inferentia2: AWS Neuron devices (aws.amazon.com/neuron), for which Pagoda has no daemon yet"),
    ("platforms/k3s-workstation", ANY, "no label names the GPU of rtx4090; say it in the ServingProfile's devices"),
    (
        "platforms/gpu-operator",
        gpu("A30"),
        "driver 550.144.03 supports CUDA 12.4, but the daemon needs 13.0, which driver 580.65.06",
    ),
    ("platforms/gke-zero", gpu("L44"), "neither the catalogue nor the ServingProfile's devices know it"),
    ("platforms/gke-zero", mig("3g.21gb"), "neither the catalogue nor the ServingProfile's devices know it"),
    ("platforms/gke-zero", mig(least="10Gi"), "set mig.profile, such as 1g.10gb, if a node pool"),
    ("platforms/gke-autopilot", ANY, "set gpu.product, such as L4, if a node pool without nodes has such GPUs"),
    ("platforms/dra", ANY, "offered: devices of the DRA driver gpu.nvidia.com, for which an entry must be dra"),
    ("platforms/cpu", ANY, "set gpu.product, such as L4, if a node pool without nodes has such GPUs"),
]
ALL = [*PLACED, *(one for one, _ in WAITING)]
# One of each cluster.
EACH = list({one.cluster: one for one in reversed(ALL)}.values())
