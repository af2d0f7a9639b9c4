"""What a replica may run on: the entries of `accelerators[]`, each with exactly one kind, and what it requests besides. Used by
InferenceService."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import Field, StringConstraints

from pagoda_contracts.resources.meta import Model, Rule, Subdomain
from pagoda_contracts.units import Duration, Quantity

KINDS: Final = ("gpu", "mig", "dra", "cpu")

MAX_PRODUCT: Final = 63
PRODUCT_PATTERN: Final = r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$"
Product = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PRODUCT, pattern=PRODUCT_PATTERN)]
# Never a list of known profiles: sizes differ per part (facts on MIG), and attributes come as +me, .me or -me.
MigProfile = Annotated[str, StringConstraints(max_length=32, pattern=r"^[1-9][0-9]*g\.[1-9][0-9]*gb([.+-][a-z.]+)?$")]
Selector = Annotated[str, StringConstraints(min_length=1, max_length=1024)]


class CpuAccelerator(Model):
    """Serving on CPU cores."""

    cores: Quantity = Field(description="CPU request of a replica, a quantity such as 250m or 8.")
    memory: Quantity = Field(description="Memory request and limit of a replica, a quantity such as 2Gi.")


class GpuAccelerator(Model):
    """Whole GPUs."""

    product: Product | None = Field(
        default=None,
        description="GPU product: the value of the label nvidia.com/gpu.product or a word of it, such as H100. If absent, any product.",
    )
    count: int = Field(default=1, ge=1, le=16, description="GPUs per replica. More than 1 is rejected until tensor parallelism is built.")


class MigAccelerator(Model):
    """One slice of a GPU. Tensor parallelism over slices is of no use, hence no count."""

    profile: MigProfile | None = Field(default=None, description="The MIG profile, such as 3g.40gb.")
    min_memory: Quantity | None = Field(
        default=None,
        description="The smallest profile that is sold with at least this much memory: 40Gi and 40G both accept 3g.40gb. "
        "Instead of `profile`.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.profile) != has(self.minMemory)",
            "mig: set exactly one of profile and minMemory",
            lambda m: (m.profile is None) != (m.min_memory is None),
        ),
    )


class DraAccelerator(Model):
    """Devices by dynamic resource allocation (resource.k8s.io)."""

    device_class_name: Subdomain = Field(description="The DeviceClass, such as gpu.nvidia.com or mig.nvidia.com.")
    selectors: Annotated[tuple[Selector, ...], Field(max_length=8)] = Field(
        default=(), description="CEL expressions over `device`; all must hold."
    )
    count: int = Field(
        default=1, ge=1, le=16, description="Devices per replica. More than 1 is rejected until tensor parallelism is built."
    )


class Accelerator(Model):
    """One alternative; exactly one kind is set."""

    gpu: GpuAccelerator | None = Field(default=None, description="Whole GPUs of one node.")
    mig: MigAccelerator | None = Field(default=None, description="A slice of a GPU.")
    dra: DraAccelerator | None = Field(default=None, description="Devices by resource claim.")
    cpu: CpuAccelerator | None = Field(default=None, description="CPU cores instead of a device.")
    fallback_after: Duration | None = Field(
        default=None,
        description="How long to wait for devices that are all in use before the next entry is chosen. If absent, the wait has no end.",
    )

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.gpu), has(self.mig), has(self.dra), has(self.cpu)].filter(set, set).size() == 1",
            "accelerators: each entry sets exactly one kind; accepted: gpu, mig, dra, cpu",
            lambda a: len(a.kinds) == 1,
        ),
    )

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that are set; one of them once validated."""
        return tuple(kind for kind in KINDS if getattr(self, kind) is not None)


class ResourcesSpec(Model):
    """What a replica on devices requests of its node besides them. What is absent is computed from the devices and the model's size."""

    cpu: Quantity | None = Field(default=None, description="Cores, such as 2 or 500m; 1 per GPU if absent, 500m on a slice.")
    memory: Quantity | None = Field(default=None, description="Memory, such as 8Gi; 4Gi per GPU if absent, 2Gi on a slice.")
    ephemeral_storage: Quantity | None = Field(
        default=None, description="Scratch disk, such as 40Gi; if absent, 1Gi and the model's size if it is fetched into the pod."
    )
