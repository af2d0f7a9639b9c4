"""What crosses between Python and the native library: its structs (src/decoder.h has the same) and its functions.
Used by this package alone."""

from __future__ import annotations

import ctypes
from pathlib import Path


class Linear(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("outputs", ctypes.c_int32),
        ("inputs", ctypes.c_int32),
        ("kind", ctypes.c_int32),
    )


class LowRank(ctypes.Structure):
    _fields_ = (("shrink", ctypes.c_void_p), ("expand", ctypes.c_void_p), ("rank", ctypes.c_int32), ("before", ctypes.c_int32))


class Layer(ctypes.Structure):
    _fields_ = (
        ("qkv", Linear),
        ("output", Linear),
        ("gate_up", ctypes.POINTER(Linear)),
        ("down", ctypes.POINTER(Linear)),
        ("router", Linear),
        *((name, ctypes.c_void_p) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, ctypes.c_int32) for name in ("window", "experts", "per_token", "normalised")),
    )


class Shape(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in ("hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "layers", "blocks", "threads")
        ),
        ("positions", ctypes.c_int32),
        ("wide_rows", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("attention_scale", ctypes.c_float),
        *((name, ctypes.c_void_p) for name in ("embedding", "norm", "cos", "sin", "pages")),
        ("head", Linear),
    )


class Step(ctypes.Structure):
    _fields_ = (
        ("tokens", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("ids", "positions", "rows", "tables")),
        ("table_rows", ctypes.c_int32),
        ("table_width", ctypes.c_int32),
        ("adapters", ctypes.c_void_p),
        ("wanted_count", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("wanted", "places", "logits", "likeliest", "best", "states")),
    )


SIZES = ctypes.sizeof(LowRank) << 48 | ctypes.sizeof(Shape) << 32 | ctypes.sizeof(Layer) << 16 | ctypes.sizeof(Step)


def library(path: Path) -> ctypes.CDLL:
    """OSError where it cannot be loaded."""
    library = ctypes.CDLL(str(path))
    library.pagoda_decoder_new.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.pagoda_decoder_new.restype = ctypes.c_void_p
    library.pagoda_decoder_free.argtypes = [ctypes.c_void_p]
    library.pagoda_decoder_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.pagoda_decoder_hold.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
    library.pagoda_decoder_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32]
    library.pagoda_decoder_spent.argtypes = [ctypes.c_void_p]
    library.pagoda_decoder_spent.restype = ctypes.c_void_p
    library.pagoda_read.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
    library.pagoda_read.restype = ctypes.c_int64
    library.pagoda_decoder_free.restype = None
    for name in ("step", "copy", "hold"):
        getattr(library, f"pagoda_decoder_{name}").restype = ctypes.c_char_p
    return library


def sizes(library: ctypes.CDLL) -> int | None:
    """What the library takes the structs' sizes for; None where it cannot say."""
    try:
        library.pagoda_sizes.restype = ctypes.c_int64
        return int(library.pagoda_sizes())
    except AttributeError:
        return None
