"""The interpreter that judges kernels where no GPU is computes as torch does, and catches what a device would not forgive."""

import pytest
import torch
import triton
import triton.language as tl
import triton.runtime.interpreter as interpreter
from pagoda_kernels.interpreter.memory import KernelFault
from support.judges.close import assert_close

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: nothing is interpreted")

SMALL = [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


def numbers(count, seed=0, spread=1.0):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) * spread


def bits(tensor):
    return tensor.view(torch.uint8)


@triton.jit
def cast(x_ptr, out_ptr, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < count)
    tl.store(out_ptr + at, x.to(out_ptr.dtype.element_ty), mask=at < count)


@pytest.mark.parametrize("dtype", SMALL)
def test_rounding_is_torchs_bit_for_bit(dtype):
    x = torch.cat([numbers(3000), numbers(900, 1, 1e-3), numbers(100, 2, 200.0), torch.tensor([0.0, -0.0])])
    largest = torch.finfo(dtype).max
    out = torch.empty(len(x), dtype=dtype)
    cast[(4,)](x, out, len(x), 1024)
    assert torch.equal(bits(out), bits(x.clamp(-largest, largest).to(dtype)))


@pytest.mark.parametrize("dtype", SMALL[1:])
def test_fp8_saturates(dtype):
    x, largest = torch.tensor([1e6, float("inf"), float("-inf"), float("nan")]), torch.finfo(dtype).max
    cast[(1,)](x, out := torch.empty(4, dtype=dtype), 4, 4)
    assert out.float()[:3].tolist() == [largest, largest, -largest]
    assert out.float()[3].isnan()


@pytest.mark.parametrize("dtype", SMALL)
def test_widening_is_exact(dtype):
    x = numbers(1000, spread=4).to(dtype)
    out = torch.empty(1000)
    cast[(1,)](x, out, 1000, 1024)
    assert torch.equal(out, x.float())


@triton.jit
def arithmetic(x_ptr, y_ptr, out_ptr, OP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    if OP == "add":
        z = x + y
    elif OP == "multiply":
        z = x * y
    elif OP == "negative":
        z = -x
    elif OP == "maximum":
        z = tl.maximum(x, y)
    elif OP == "where":
        z = tl.where(x < y, x, y)
    elif OP == "clamp":
        z = tl.clamp(
            x,
            tl.full((BLOCK,), -0.5, tl.float32).to(x.dtype),
            tl.full((BLOCK,), 0.5, tl.float32).to(x.dtype),
            propagate_nan=tl.PropagateNan.ALL,
        )
    else:
        z = tl.fma(x, y, x)
    tl.store(out_ptr + at, z.to(out_ptr.dtype.element_ty))


EXPECTED = {
    "add": lambda x, y: x + y,
    "multiply": lambda x, y: x * y,
    "negative": lambda x, _: -x,
    "maximum": torch.maximum,
    "where": torch.minimum,
    "clamp": lambda x, _: x.clamp(-0.5, 0.5),
    "fma": lambda x, y: (x.double() * y.double() + x.double()).float().bfloat16(),
}


@pytest.mark.parametrize("op", EXPECTED)
def test_arithmetic_in_bf16_is_torchs_bit_for_bit(op):
    x, y = numbers(1024).bfloat16(), numbers(1024, 1).bfloat16()
    out = torch.empty_like(x)
    arithmetic[(1,)](x, y, out, op, 1024)
    assert torch.equal(bits(out), bits(EXPECTED[op](x, y)))


@triton.jit
def reductions(x_ptr, out_ptr, OP: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    x = tl.load(x_ptr + rows[:, None] * WIDTH + columns[None, :])
    if OP == "sum":
        y = tl.sum(x, axis=1)
    elif OP == "max":
        y = tl.max(x, axis=1)
    else:
        y = tl.argmax(x, axis=1)
    tl.store(out_ptr + rows, y.to(out_ptr.dtype.element_ty))


@pytest.mark.parametrize(
    ("op", "expected"),
    [("sum", lambda x: x.float().sum(1)), ("max", lambda x: x.amax(1).float()), ("argmax", lambda x: x.argmax(1).float())],
)
def test_reductions_of_bf16(op, expected):
    x = (numbers(8 * 64) - 3).reshape(8, 64).bfloat16()
    out = torch.empty(8)
    reductions[(1,)](x, out, op, 8, 64)
    assert_close(out, expected(x), rtol=2**-8, atol=0)


@triton.jit
def running_sum(x_ptr, out_ptr, WIDTH: tl.constexpr):
    at = tl.arange(0, WIDTH)
    tl.store(out_ptr + at, tl.cumsum(tl.load(x_ptr + at), 0).to(out_ptr.dtype.element_ty))


def test_a_scan_of_bf16():
    x = torch.tensor([0.5, -1.0, 2.0, 0.25]).bfloat16()
    out = torch.empty(4)
    running_sum[(1,)](x, out, 4)
    assert out.tolist() == [0.5, -0.5, 1.5, 1.75]


@triton.jit
def product(a_ptr, b_ptr, out_ptr, PRECISION: tl.constexpr, SIZE: tl.constexpr):
    rows, columns = tl.arange(0, SIZE), tl.arange(0, SIZE)
    at = rows[:, None] * SIZE + columns[None, :]
    tl.store(out_ptr + at, tl.dot(tl.load(a_ptr + at), tl.load(b_ptr + at), input_precision=PRECISION))


@pytest.mark.parametrize("dtype", [*SMALL, torch.float16])
def test_a_product_of_matrices_sums_in_fp32(dtype):
    a, b = (numbers(32 * 32, seed).reshape(32, 32).to(dtype) for seed in (0, 1))
    out = torch.empty(32, 32)
    product[(1,)](a, b, out, "ieee", 32)
    assert_close(out.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-5)


def test_a_product_of_fp32_is_one_of_tf32_unless_the_kernel_says_otherwise():
    a, b = (numbers(32 * 32, seed).reshape(32, 32) for seed in (0, 1))
    exact, coarse = torch.empty(32, 32), torch.empty(32, 32)
    product[(1,)](a, b, exact, "ieee", 32)
    product[(1,)](a, b, coarse, "tf32", 32)
    right = a.double() @ b.double()
    assert (exact - right).norm() < 1e-6 * right.norm()
    assert 1e-4 * right.norm() < (coarse - right).norm() < 1e-3 * right.norm()


@triton.jit
def copy(x_ptr, out_ptr, x_stride, width, shift, MASKED: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    on = at < (width if MASKED else BLOCK)
    tl.store(out_ptr + row * width + at + shift, tl.load(x_ptr + row * x_stride + at, mask=on, other=0.0), mask=on)


def test_a_clean_kernel_passes():
    x, out = numbers(4 * 24).reshape(4, 24).bfloat16(), torch.empty(4, 24).bfloat16()
    copy[(4,)](x, out, 24, 24, 0, True, 32)
    assert torch.equal(x, out)


def test_a_missing_mask_is_caught():
    with pytest.raises(
        KernelFault, match=r"load out of bounds in program 0: 8 lanes, first at 96 bytes from the start of the argument of 96 bytes"
    ):
        copy[(1,)](numbers(24), torch.empty(32), 24, 24, 0, False, 32)
    with pytest.raises(KernelFault, match=r"store out of bounds in program 0: 8 lanes"):
        copy[(1,)](numbers(32), torch.empty(24), 24, 24, 0, False, 32)


def test_a_gap_of_a_strided_view_is_out_of_bounds():
    x = numbers(4 * 32).reshape(4, 32)[:, :24]
    with pytest.raises(KernelFault, match=r"load out of bounds in program 0: 8 lanes"):
        copy[(4,)](x, torch.empty(200), 32, 24, 0, False, 32)
    out = torch.empty(4, 24)
    copy[(4,)](x, out, 32, 24, 0, True, 32)
    assert torch.equal(x, out)


def test_a_gap_between_elements_is_out_of_bounds():
    with pytest.raises(KernelFault, match=r"load out of bounds in program 0: 4 lanes"):
        copy[(1,)](numbers(16)[::2], torch.empty(8), 8, 8, 0, True, 8)


def test_a_transposed_view_is_all_of_its_elements():
    x, out = numbers(24 * 24).reshape(24, 24).t(), torch.empty(24, 24)
    copy[(24,)](x, out, 24, 24, 0, True, 32)
    assert torch.equal(x.t(), out)


def test_stores_that_overlap_are_caught():
    with pytest.raises(KernelFault, match=r"store: program 1 touches what program 0 wrote"):
        copy[(4,)](numbers(96), torch.empty(4 * 24 + 8), 16, 16, 0, False, 32)


@triton.jit
def gather(x_ptr, index_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + tl.load(index_ptr + at)))


@pytest.mark.parametrize("index", [-1, 16, 2**31 - 1])
def test_an_index_out_of_bounds_is_caught(index):
    indices = torch.tensor([0, 15, index, 3])
    with pytest.raises(KernelFault, match="load out of bounds in program 0: 1 lanes"):
        gather[(1,)](numbers(16), indices, torch.empty(4), 4)


@triton.jit
def scatter(x_ptr, index_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + tl.load(index_ptr + at), at.to(tl.float32))


def test_one_address_written_twice_by_one_store_is_caught():
    with pytest.raises(KernelFault, match="writes one address twice"):
        scatter[(1,)](torch.zeros(8), torch.tensor([0, 3, 3, 1]), 4)
    scatter[(1,)](out := torch.zeros(4), torch.tensor([3, 2, 1, 0]), 4)
    assert out.tolist() == [3, 2, 1, 0]


@triton.jit
def neighbour(x_ptr, out_ptr, distance):
    program, count = tl.program_id(0), tl.num_programs(0)
    tl.store(out_ptr + program, tl.load(x_ptr + (program + distance + count) % count) + 1)


@pytest.mark.parametrize(
    ("distance", "fault"), [(-1, r"load: program 1 touches what program 0 wrote"), (1, r"store: program 1 touches what program 0 read")]
)
def test_a_program_that_needs_another_ones_turn_is_caught(distance, fault):
    both = torch.zeros(4)
    with pytest.raises(KernelFault, match=fault):
        neighbour[(4,)](both, both, distance)


def test_a_program_may_change_what_only_it_reads():
    both = torch.zeros(4)
    neighbour[(4,)](both, both, 0)
    neighbour[(4,)](both, both, 0)  # another launch: what the first one wrote may be read
    assert both.tolist() == [2, 2, 2, 2]


def test_views_of_one_storage_are_one_memory():
    both = torch.zeros(5)
    with pytest.raises(KernelFault, match="program 1 touches what program 0 wrote"):
        neighbour[(4,)](both[:4], both[1:], 0)


@triton.jit
def total(x_ptr, out_ptr, READS: tl.constexpr):
    program = tl.program_id(0)
    tl.atomic_add(out_ptr, tl.load(x_ptr + program))
    if READS:
        tl.store(x_ptr + program, tl.load(out_ptr))


def test_atomics_are_no_race_but_a_read_beside_them_is():
    total[(4,)](torch.ones(4), out := torch.zeros(1), False)
    assert out.item() == 4
    with pytest.raises(KernelFault, match="what an atomic wrote"):
        total[(4,)](torch.ones(4), torch.zeros(1), True)


@triton.jit
def last_sums(x_ptr, kept_ptr, counter_ptr, out_ptr, COUNTS: tl.constexpr):
    program = tl.program_id(0)
    tl.store(kept_ptr + program, tl.load(x_ptr + program))
    arrived = tl.atomic_add(counter_ptr, 1) if COUNTS else program
    if arrived == 3:
        tl.store(out_ptr, tl.sum(tl.load(kept_ptr + tl.arange(0, 4))))


def test_a_counter_orders_the_programs_that_it_counts():
    last_sums[(4,)](torch.ones(4), torch.empty(4), torch.zeros(1, dtype=torch.int32), out := torch.empty(1), True)
    assert out.item() == 4
    with pytest.raises(KernelFault, match="load: program 3 touches what program 0 wrote"):
        last_sums[(4,)](torch.ones(4), torch.empty(4), torch.zeros(1, dtype=torch.int32), torch.empty(1), False)


@triton.jit
def without_other(x_ptr, out_ptr, width, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out_ptr + at, tl.load(x_ptr + at, mask=at < width))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, *SMALL])
def test_what_a_mask_turns_off_is_unknown(dtype):
    out = torch.zeros(8, dtype=dtype)
    without_other[(1,)](torch.ones(8, dtype=dtype), out, 6, 8)
    assert out.float().isnan().tolist() == [False] * 6 + [True] * 2


@triton.jit
def far(x_ptr, out_ptr, stride):
    program = tl.program_id(0).to(tl.int64)
    tl.store(out_ptr + program, tl.load(x_ptr + program * stride))


def test_strides_over_two_gib_take_no_memory():
    x = torch.empty_strided((2, 1), (2**31 + 16, 1), dtype=torch.bfloat16)
    x.copy_(torch.tensor([[1.0], [2.0]]))
    out = torch.zeros(2, dtype=torch.bfloat16)
    far[(2,)](x, out, x.stride(0))
    assert out.tolist() == [1, 2]


@triton.jit
def infinite(x_ptr, out_ptr):
    x = tl.load(x_ptr)
    tl.store(out_ptr, (x - x) + tl.exp2(x))


def test_infinities_are_no_warning():
    infinite[(1,)](torch.tensor([float("inf")]), out := torch.zeros(1))
    assert out.isnan().all()


@triton.jit
def next_one(x):
    return x + tl.max(x, 0)


@triton.jit
def counted(out_ptr, TIMES: tl.constexpr):
    at = tl.arange(0, 2)
    total = at
    for _ in range(TIMES):
        total = next_one(total)
    tl.store(out_ptr + at, total)


def test_a_launch_patches_the_language_once_for_all_calls_of_device_functions(monkeypatch):
    patched = []
    builtins = interpreter._patch_builtin
    monkeypatch.setattr(interpreter, "_patch_builtin", lambda *args: (patched.append(args[0]), builtins(*args)))
    for times, expected in ((1, [1, 2]), (5, [31, 32]), (1, [1, 2])):
        patched.clear()
        counted[(1,)](out := torch.zeros(2, dtype=torch.int32), times)
        assert out.tolist() == expected
        assert 0 < len(patched) <= 15  # by upstream, a call of `next_one` and what is below it adds more than 5


@triton.jit
def refused(x_ptr):
    tl.store(x_ptr, tl.load(x_ptr + tl.arange(0, 3)))


def test_other_errors_stay_what_they_are():
    with pytest.raises(triton.runtime.errors.InterpreterError, match="power of 2"):
        refused[(1,)](torch.zeros(3))
