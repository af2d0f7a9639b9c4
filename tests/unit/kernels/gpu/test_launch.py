"""Launches without Triton's dispatch: right results whatever the arguments, and a binary is only found by what Triton would find it by."""

import inspect
from types import SimpleNamespace

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st
from pagoda_kernels.gpu import launch
from pagoda_kernels.gpu.launch import Cached, cached, why_not
from pagoda_kernels.testing import device
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature


@cached
@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["out"])
def _add(x, out, count, step, BLOCK: tl.constexpr, TWICE: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    found = tl.load(x + place * step, mask=place < count, other=0)
    tl.store(out + place, found + found if TWICE else found + 1, mask=place < count)


def test_results_are_right_whatever_the_arguments_are_from_launch_to_launch():
    numbers = torch.arange(200, device=device())
    for dtype in (torch.float32, torch.int32, torch.float32):
        for first, count, step in ((0, 16, 1), (0, 33, 1), (1, 16, 1), (4, 40, 2), (0, 10, 16), (0, 33, 1)):
            for twice in (False, True):
                x, out = numbers.to(dtype)[first:], torch.zeros(41, dtype=dtype, device=device())[1:]
                _add[(triton.cdiv(count, 16),)](x, out, count, step, BLOCK=16, TWICE=twice, num_warps=1)
                read = x[: count * step : step]
                assert out.tolist() == [*(read * 2 if twice else read + 1).tolist(), *[0] * (40 - count)]


class Jit:
    """A kernel `(x, free, y, n, count, SIZE)`, `count` and `free` not specialised on; notes what it is asked."""

    def __init__(self):
        names = {"x": "", "free": "alignment", "y": "", "n": "", "count": "value", "SIZE": "constant"}
        self.params = [
            SimpleNamespace(
                is_constexpr=rule == "constant", do_not_specialize=rule == "value", do_not_specialize_on_alignment=rule == "alignment"
            )
            for rule in names.values()
        ]
        self.dispatched, self.launched = [], []

    def __getitem__(self, grid):
        def run(*arguments, **named):
            self.dispatched.append((grid, arguments, named))
            number = len(self.dispatched)
            return SimpleNamespace(run=lambda *told: self.launched.append((number, *told)), function=f"f{number}", packed_metadata="m")

        return run


class Driver:
    here = 0

    def get_current_device(self):
        return self.here

    def get_current_stream(self, place):
        return 7 + place


@pytest.fixture
def place(monkeypatch):
    """The driver of a machine with devices."""
    found = Driver()
    monkeypatch.setattr(launch, "driver", SimpleNamespace(active=found))
    return found


def arguments(dtype=torch.bfloat16, offset=0, free=0, n=5, count=9):
    words = torch.zeros(64, dtype=dtype)
    return words[offset:], words[free:], torch.zeros(8, dtype=torch.int32), n, count


def test_the_second_launch_goes_to_the_binary_with_its_own_addresses(place):
    kernel, jit = Cached(one := Jit()), one
    for grid in ((3,), (4, 5), (6, 7, 8)):
        given_ = arguments(count=sum(grid))
        kernel[grid](*given_, SIZE=8, num_warps=4)
    x, free, y, n, count = given_
    assert len(jit.dispatched) == 1
    addresses = x.data_ptr(), free.data_ptr(), y.data_ptr()
    assert [told[1:4] for told in jit.launched] == [(4, 5, 1), (6, 7, 8)]
    assert jit.launched[-1] == (1, 6, 7, 8, 7, "f1", "m", None, None, None, *addresses, n, count, None)


@pytest.mark.parametrize(
    ("changed", "named", "here"),
    [
        ({"dtype": torch.float16}, {}, 0),
        ({"n": 16}, {}, 0),
        ({"n": 1}, {}, 0),
        ({"n": None}, {}, 0),
        ({"count": 2.0}, {}, 0),
        ({}, {"SIZE": 16}, 0),
        ({}, {"num_warps": 8}, 0),
        ({}, {"launch_pdl": True}, 0),
        ({}, {}, 1),
    ],
)
def test_another_binary_is_asked_of_triton_once(place, changed, named, here):
    kernel, jit = Cached(one := Jit()), one
    kernel[(1,)](*arguments(), SIZE=8, num_warps=4)
    for _ in range(2):
        place.here = here
        kernel[(1,)](*arguments(**changed), **({"SIZE": 8, "num_warps": 4} | named))
        place.here = 0
        kernel[(1,)](*arguments(), SIZE=8, num_warps=4)
    assert len(jit.dispatched) == 2
    assert [told[0] for told in jit.launched] == [1, 2, 1]


@pytest.mark.parametrize(
    ("changed", "kept"), [({"offset": 1}, False), ({"free": 1}, True), ({"count": 2**31}, False), ({"count": 1}, True)]
)
def test_odd_addresses_and_wide_integers_are_left_to_triton(place, changed, kept):
    kernel, jit = Cached(one := Jit()), one
    for _ in range(3):
        kernel[(1,)](*arguments(**changed), SIZE=8)
    assert len(jit.dispatched) == (1 if kept else 3)


def test_what_no_binary_is_known_for_is_not_kept(place, monkeypatch):
    """Constants by position, a kernel that a hook has not let compile, another Triton, and whoever compares."""
    kernel, jit = Cached(one := Jit()), one
    for _ in range(2):
        kernel[(1,)](*arguments(), 8)
    assert len(jit.dispatched) == 2
    monkeypatch.setattr(Jit, "__getitem__", lambda _self, _grid: lambda *_given, **_named: None)
    kernel[(1,)](*arguments(), SIZE=8)
    monkeypatch.undo()
    monkeypatch.setattr(launch, "driver", SimpleNamespace(active=place))
    kernel[(1,)](*arguments(), SIZE=8)
    monkeypatch.setattr(Cached, "enabled", False)
    kernel[(1,)](*arguments(), SIZE=8)
    assert (len(jit.dispatched), jit.launched) == (4, [])


def test_a_triton_that_launches_in_another_way_keeps_all_launches(place, monkeypatch):
    assert why_not() is None, "the one that is installed"
    why_not.cache_clear()
    monkeypatch.setattr(JITFunction, "run", lambda self, *given, **named: self.launch_all(given, named))
    try:
        assert why_not() == f"Triton {triton.__version__} launches binaries in another way"
        kernel, jit = Cached(one := Jit()), one
        for _ in range(2):
            kernel[(1,)](*arguments(), SIZE=8)
        assert len(jit.dispatched) == 2
    finally:
        why_not.cache_clear()


def _kernel(x, free, n, count, eps, SIZE: tl.constexpr):
    pass


REAL = JITFunction(_kernel, do_not_specialize=["count"], do_not_specialize_on_alignment=["free"])
BIND = create_function_from_signature(inspect.signature(_kernel), REAL.params, make_backend(GPUTarget("cuda", 90, 32)))
TENSORS = {dtype: torch.zeros(64, dtype=dtype) for dtype in (torch.bfloat16, torch.float32, torch.int64)}
tensors = st.builds(lambda dtype, offset: TENSORS[dtype][offset:], st.sampled_from(list(TENSORS)), st.integers(0, 16))
numbers = st.one_of(
    st.sampled_from([0, 1, 16, 17, -16, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**40, 2**63]),
    st.integers(0, 64),
    st.none(),
    st.booleans(),
)


@given(*[st.tuples(tensors, tensors, numbers, numbers, st.sampled_from([0.0, 1.0, 16.0]))] * 2)
def test_two_launches_that_share_a_binary_here_share_it_in_triton(one, other):
    kernel = Cached(REAL)
    here = [kernel._described(0, given_, {"SIZE": 8}) for given_ in (one, other)]
    theirs = [BIND(*given_, SIZE=8)[1] for given_ in (one, other)]
    if here[0][0] == here[1][0] and not here[0][2] and not here[1][2]:
        assert theirs[0] == theirs[1]
