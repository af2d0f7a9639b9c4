"""Formats of weights and KV cache: bits per element, and the bits of scales that come with them.

Called by model, fit and roofline. Says nothing about which device computes in which format (devices.py does).
"""

from __future__ import annotations

from fractions import Fraction
from typing import Final, NamedTuple

from pagoda_sizing.errors import UnknownQuantisation


class Format(NamedTuple):
    """`scale_bits` are stored once per `group` weights, beside the weights themselves."""

    name: str
    bits: int
    scale_bits: int
    group: int
    rate: str

    @property
    def bits_per_weight(self) -> Fraction:
        """Scales included: int4 g128 is 4.25 bits, nvfp4 4.5."""
        return self.bits + Fraction(self.scale_bits, self.group)


WEIGHTS: Final = {
    entry.name: entry
    for entry in (
        Format("bf16", 16, 0, 1, "bf16"),
        Format("fp8", 8, 32, 128 * 128, "fp8"),  # one fp32 scale per 128 x 128 block (DeepSeek-V3's layout)
        Format("int8", 8, 16, 4096, "int8"),  # one bf16 scale per output row; rows are about 4,096 long
        Format("int4", 4, 32, 128, "fp16"),  # g128: 16-bit scale and zero point per group; weights only, computed in 16 bits
        Format("nvfp4", 4, 8, 16, "fp4"),  # one e4m3 scale per 16
    )
}
"""Linear layers only: embeddings, head, norms and routers stay in bf16, as in the checkpoints that people publish."""

KV_BYTES: Final = {"bf16": 2, "fp8": 1, "int8": 1}


def weight_format(name: str) -> Format:
    """The format called `name`."""
    if name not in WEIGHTS:
        raise UnknownQuantisation(f"quantisation must be one of {', '.join(WEIGHTS)}, got {name!r}")
    return WEIGHTS[name]


def kv_element_bytes(name: str) -> int:
    """Bytes of one element of the KV cache."""
    if name not in KV_BYTES:
        raise UnknownQuantisation(f"KV cache dtype must be one of {', '.join(KV_BYTES)}, got {name!r}")
    return KV_BYTES[name]


def kv_scale_bytes(name: str) -> int:
    """Bytes beside each head's keys, and beside its values, of one token: of 8 bits they have a scale in float32."""
    return 4 if kv_element_bytes(name) == 1 else 0


def nominal_bytes(parameters: int, name: str) -> int:
    """The back-of-the-envelope number: every parameter in the format, scales left out (70 B at int4: 35 GB)."""
    return parameters * weight_format(name).bits // 8


def stored_bytes(parameters: int, name: str) -> int:
    """Bytes of quantised parameters with their scales, rounded up."""
    return -(-parameters * weight_format(name).bits_per_weight // 8).__int__()
