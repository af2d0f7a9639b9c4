"""bench/gpu.py: its arithmetic, what it goes on with, and that a wrong kernel is called wrong and not timed. Ops here are torch's."""

import importlib.util
import json
import os
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace

import gpu_device
import numpy as np
import pytest
import torch
from gpu_attention import Buffers, Shape, attention, baselines
from gpu_device import dry
from gpu_kernels import cases, config_grid, measurements, present
from gpu_numbers import Ceilings, Cost, Timed, buffer_sets, floor, graph_calls, reached, replays, timed, verdict
from gpu_pointwise import Rows, add_rms_norm, rms_norm, rope_kv_write, silu_mul
from gpu_record import ENDED, Measurement, OtherDevice, Record, chosen, fits, summary, table
from gpu_sampling import Draws, _allowed, _drawn, _torch_sort
from gpu_trial import OURS, frobenius, measure
from pagoda_daemon.core.sampling import DRAW
from pagoda_daemon.runner.draw import draw

ROOT = Path(__file__).parents[3]
CEILINGS = Ceilings(4000.0, 800.0, {})
MB = 10**6


@pytest.mark.parametrize(
    ("cost", "us", "limit"),
    [
        pytest.param(Cost(4000 * MB), 1000.0, "bytes", id="4 GB at 4 TB/s"),
        pytest.param(Cost(MB, 8 * 10**11), 1000.0, "flops", id="0.8 TFLOP at 800 TFLOP/s"),
        pytest.param(Cost(MB, launches=3), 6.0, "launches", id="three kernels"),
    ],
)
def test_the_floor_is_the_largest_of_three(cost, us, limit):
    assert floor(cost, CEILINGS) == (pytest.approx(us), limit)


def test_a_call_at_its_floor_reaches_a_hundred_percent():
    assert reached(Cost(4000 * MB), CEILINGS, 1000.0) == {"us": 1000.0, "percent": 100.0, "gb_s": 4000.0}
    assert reached(Cost(MB, 8 * 10**11), CEILINGS, 2000.0)["percent"] == 50.0
    assert reached(Cost(MB, 8 * 10**11), CEILINGS, 2000.0)["tflop_s"] == 400.0


@pytest.mark.parametrize(
    ("touched", "room", "expected"),
    [
        pytest.param(300 * MB, 8000 * MB, (1, False), id="larger than four caches"),
        pytest.param(50 * MB, 8000 * MB, (5, False), id="five make four caches"),
        pytest.param(50 * MB, 100 * MB, (2, True), id="no room for five"),
        pytest.param(1000, 8000 * MB, (1, True), id="too small to leave the cache"),
        pytest.param(50 * MB, 10 * MB, (1, True), id="no room at all"),
    ],
)
def test_buffers_are_rotated_until_four_caches_are_touched(touched, room, expected):
    assert buffer_sets(touched, 60 * MB, room) == expected


@pytest.mark.parametrize(
    ("sets", "floor_us", "called_us", "calls"),
    [
        pytest.param(5, 2.0, 90.0, 200, id="short calls until 400 us, whatever the host took"),
        pytest.param(5, 100.0, 90.0, 20, id="whole turns of five, sixteen at least"),
        pytest.param(1, 5000.0, 90.0, 1, id="a long one alone"),
        pytest.param(4, 15.0, 5000.0, 4, id="one far above its floor, too"),
        pytest.param(300, 2.0, 90.0, 300, id="each set once"),
        pytest.param(1, 0.0, 90.0, 200, id="no floor known"),
    ],
)
def test_a_graph_is_long_beside_its_launch(sets, floor_us, called_us, calls):
    assert graph_calls(sets, floor_us, called_us) == calls


def test_a_sample_is_long_beside_the_clock():
    assert (replays(5000.0), replays(400.0), replays(0.0)) == (1, 4, 50)


def test_a_summary_is_the_median_and_the_extremes():
    assert timed([10.0, 12.0, 11.0, 9.0, 10.0]) == (10.0, pytest.approx(0.3))


@pytest.mark.parametrize(
    ("ours", "theirs", "word"),
    [(10.0, 12.5, "ours is faster"), (10.0, 11.9, "equal"), (12.5, 10.0, "ours is slower"), (11.9, 10.0, "equal")],
)
def test_faster_is_what_is_beyond_twice_the_spread(ours, theirs, word):
    assert verdict(Timed(ours, 0.1), Timed(theirs, 0.02))["verdict"] == word


def plan(*names):
    return [Measurement(name, rank, lambda _: {}) for rank, name in enumerate(names)]


def test_the_most_telling_comes_first_and_what_is_there_is_skipped():
    later, first = Measurement("a/1", (1, 0), dict), Measurement("b/2", (0, 5), dict)
    assert [one.name for one in chosen([later, first], (), ())] == ["b/2", "a/1"]
    assert [one.name for one in chosen([later, first], ["b/2"], ())] == ["a/1"]


@pytest.mark.parametrize(
    ("only", "found"), [([], 3), (["decode"], 2), (["decode/b1"], 1), (["d*8k"], 1), (["decode", "norm"], 3), (["x"], 0)]
)
def test_patterns_match_any_part_of_a_name(only, found):
    assert len(chosen(plan("decode/b1", "decode/b64-8k", "norm/64"), (), only)) == found


@pytest.mark.parametrize(
    ("left_s", "longest_s", "begins"),
    [
        pytest.param(5.0, {}, True, id="none of its kind yet"),
        pytest.param(4.9, {}, False, id="less than is expected"),
        pytest.param(5.0, {"decode": 5.1, "norm": 1.0}, False, id="as long as the longest of its kind"),
        pytest.param(1.0, {"decode": 0.9, "engine": 60.0}, True, id="others do not count"),
    ],
)
def test_no_measurement_begins_that_would_end_too_late(left_s, longest_s, begins):
    assert fits(Measurement("decode/b1", (0,), dict, expected_s=5.0), left_s, longest_s) == begins


def test_a_second_process_goes_on_behind_what_the_first_left(tmp_path):
    path, device = tmp_path / "out.json", {"device": "one"}
    first = Record.open(path, device)
    first.ran({"ceilings": 1})
    first.add("a", {"us": 1.0})
    first.begin("b")
    second = Record.open(path, device)
    second.ran({"ceilings": 2})
    second.add("c", {"us": 3.0})
    assert second.results == {"a": {"us": 1.0, "run": 0}, "b": {"error": ENDED}, "c": {"us": 3.0, "run": 1}}
    assert json.loads(path.read_text()) == second.document()
    assert "b" not in [one.name for one in chosen(plan("a", "b", "d"), second.results, ())]


def test_measurements_of_two_devices_are_not_mixed(tmp_path):
    Record.open(tmp_path / "out.json", {"device": "one"}).ran({})
    with pytest.raises(OtherDevice, match="'two'"):
        Record.open(tmp_path / "out.json", {"device": "two"})


SIDES = {
    "pagoda": {"us": 10.0, "percent": 93.0, "error": 1e-3, "gb_s": 3720.0},
    "torch": {"us": 20.0, "error": None, "speed": 2.0, "verdict": "ours is faster", "gb_s": 1860.0, "tflop_s": 7.0},
}


def test_the_table_has_a_line_per_side_and_per_failure():
    lines = table({"a/1": {"limit": "bytes", "sides": SIDES, "l2_resident": True}, "b": {"error": "broken"}}).splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["a/1", "10.00", "93.0", "bytes", "3720", "GB/s", "1.0e-03", "L2-resident"],
        ["torch", "20.00", "bytes", "1860", "GB/s", "2.00", "ours", "is", "faster"],
        ["b", "broken"],
    ]


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"limit": "bytes", "sides": SIDES}, "10.0 us, 93.0 %, 3720 GB/s"),
        ({"limit": "bytes", "sides": {"pagoda": {"failed": "WRONG"}, "torch": SIDES["torch"]}}, "WRONG"),
        ({"error": "out of memory"}, "out of memory"),
    ],
)
def test_each_measurement_is_told_in_a_line_when_it_ends(result, words):
    assert summary(result) == words


@pytest.mark.parametrize(
    ("shape", "pairs", "rows_read"),
    [
        pytest.param(Shape((10,), (10,)), 55, 10, id="causal"),
        pytest.param(Shape((10,), (2,)), 19, 10, id="the end of a prompt"),
        pytest.param(Shape((10, 4), (1, 1)), 14, 14, id="decode"),
        pytest.param(Shape((10,), (1,), window=3), 3, 3, id="decode in a window"),
        pytest.param(Shape((10,), (10,), window=3), 27, 10, id="causal in a window"),
        pytest.param(Shape((10,), (2,), window=3), 6, 4, id="two in a window"),
    ],
)
def test_attention_costs_what_is_seen(shape, pairs, rows_read):
    asked = sum(shape.queries)
    assert shape.cost() == Cost((2 * rows_read * 8 + 2 * asked * 32) * 128 * 2, 4 * pairs * 32 * 128)


def test_the_reference_of_attention_is_torch_s():
    shape = Shape((9, 5), (9, 5), heads=4, kv_heads=2, head_dim=8)
    query, keys_values = torch.randn(14, 4, 8).double(), torch.randn(2, 14, 2, 8).double()
    found = attention(shape, query, keys_values)
    for rows in (slice(0, 9), slice(9, 14)):
        q, k, v = (one.transpose(0, 1)[None] for one in (query[rows], *keys_values[:, rows]))
        right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        assert torch.allclose(found[rows], right[0].transpose(0, 1))


def test_a_window_hides_what_lies_further_back():
    shape = Shape((9,), (1,), window=3, heads=4, kv_heads=2, head_dim=8)
    query, keys_values = torch.randn(1, 4, 8).double(), torch.randn(2, 9, 2, 8).double()
    near = attention(Shape((3,), (1,), heads=4, kv_heads=2, head_dim=8), query, keys_values[:, 6:])
    assert torch.allclose(attention(shape, query, keys_values), near)


@pytest.mark.parametrize("queries", [(40, 40), (1, 1)])
def test_sdpa_computes_what_the_reference_does_on_pages(queries):
    """Keys and values of a set, read through its pages, row after row."""
    pytest.importorskip("pagoda_kernels.gpu.pages")
    buffers = Buffers.of(Shape((40, 40), queries, page=16, heads=4, kv_heads=2, head_dim=32), dry())
    assert buffers.sets.number == 1
    pages = buffers.paged.pages(0)
    token = 21
    slot = int(pages.tables[int(pages.table_starts[1]) + token // 16]) * 16 + token % 16
    assert torch.equal(buffers.paged.contiguous(0)[:, 40 + token], buffers.paged.kv[:, slot])
    side = baselines(buffers)["sdpa-flash"]()
    right = attention(buffers.paged.shape, buffers.query, buffers.paged.contiguous(0))
    assert frobenius(side.seen(side.calls[0]()), right).within(4e-3)


FILTERS = ({"top_k": 5}, {"top_p": 0.5}, {"min_p": 0.2}, {"top_k": 5, "top_p": 0.5, "min_p": 0.2})


@pytest.mark.parametrize("filters", FILTERS)
def test_the_judge_of_sampling_draws_as_the_daemon(filters):
    """The daemon's draw of filtered rows is by the noise of single tokens, as the kernel's."""
    draws = Draws(64, 700, **filters)
    logits = torch.randn(64, 700)
    rows = np.zeros(64, DRAW)
    rows["temperature"], rows["top_k"], rows["top_p"], rows["min_p"] = draws.temperature, draws.top_k, draws.top_p, draws.min_p
    rows["seed"], positions = [2**row - 1 for row in range(64)], np.arange(64, dtype=np.int32)
    seeds = torch.from_numpy(rows["seed"].astype(np.int64))
    right = torch.from_numpy(draw(logits, rows, positions)).long()
    assert torch.equal(_drawn(logits, draws, seeds, torch.from_numpy(positions)), right)


@pytest.mark.parametrize("filters", [*FILTERS, {}])
def test_torch_s_draw_keeps_to_the_filters(filters):
    draws = Draws(256, 700, **filters)
    logits = torch.randn(256, 700)
    assert _allowed(logits, draws, _torch_sort(logits, draws)).norm == 0.0


def torch_norm(x, weight, eps, *, out):
    return out.copy_(torch.nn.functional.rms_norm(x, weight.shape, weight, eps))


def torch_add_norm(x, residual, weight, eps, *, out):
    return torch_norm(residual.add_(x), weight, eps, out=out)


def torch_silu_mul(gate_up, *, out):
    gate, up = gate_up.chunk(2, dim=-1)
    return out.copy_(torch.nn.functional.silu(gate) * up)


OPS = SimpleNamespace(rms_norm=torch_norm, add_rms_norm=torch_add_norm, silu_mul=torch_silu_mul)


@pytest.mark.parametrize("build", [rms_norm, add_rms_norm, silu_mul])
def test_a_right_kernel_is_right(build):
    result = measure(build(OPS, Rows(5, 64), dry(), 4e-3), dry(), CEILINGS)
    assert [side.get("failed") for side in result["sides"].values()] == [None, None]
    assert 0 < result["sides"][OURS]["error"] < 4e-3


def unwritten(x, weight, eps, *, out):
    """Of the last row, nothing."""
    out[:-1] = torch_norm(x, weight, eps, out=torch.empty_like(out))[:-1]
    return out


def off(x, weight, eps, *, out):
    return torch_norm(x, weight * 1.02, eps, out=out)


def one_row_off(x, weight, eps, *, out):
    torch_norm(x, weight, eps, out=out)[0] *= 1.03
    return out


def only_eager(x, weight, eps, *, out, calls):
    """Right when it is called first, not when the graph is replayed."""
    calls.append(1)
    return torch_norm(x, weight, eps, out=out) if len(calls) == 1 else out


def broken(x, weight, eps, *, out):
    raise RuntimeError("out of resource: shared memory")


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        pytest.param(unwritten, "WRONG (_called): relative error nan", id="not written"),
        pytest.param(off, "WRONG (_called): relative error", id="off by 2 %"),
        pytest.param(one_row_off, "WRONG (_called)", id="one row of 1000 off by 3 %"),
        pytest.param(partial(only_eager, calls=[]), "WRONG (prove): relative error nan", id="wrong in a graph"),
        pytest.param(broken, "RuntimeError: out of resource: shared memory", id="does not run"),
    ],
)
def test_a_wrong_kernel_is_called_wrong_and_not_timed(kernel, words):
    machine = SimpleNamespace(device=torch.device("cpu"), l2=1, room=10**9, dry=False, randn=dry().randn, prove=dry().prove, peers=())
    trial = rms_norm(SimpleNamespace(rms_norm=kernel), Rows(1000, 64), machine, 4e-3)
    result = measure(trial, machine, CEILINGS)  # this machine cannot time: asked to, it would fail
    assert result["sides"][OURS]["failed"].startswith(words)
    assert "us" not in result["sides"][OURS]
    json.dumps(result, allow_nan=False)


def test_a_kernel_that_leaves_the_residual_is_wrong():
    def forgets(x, residual, weight, eps, *, out):
        return torch_norm(x + residual, weight, eps, out=out)

    result = measure(add_rms_norm(SimpleNamespace(add_rms_norm=forgets), Rows(5, 64), dry(), 4e-3), dry(), CEILINGS)
    assert "WRONG" in result["sides"][OURS]["failed"]


def rope(qkv, turn, place, norms, *, query, writes):
    """By the formula; keys and values are written only if asked to."""
    heads, head_dim = query.shape[1:]
    turning, value = qkv.view(len(qkv), -1, head_dim).split((heads + 2, 2), dim=1)
    half = torch.cat((-turning[..., head_dim // 2 :], turning[..., : head_dim // 2]), dim=-1)
    turned = turning * turn.cos[turn.positions][:, None] + half * turn.sin[turn.positions][:, None]
    if writes:
        place.kv[:, place.slots] = torch.stack((turned[:, heads:], value))
    return query.copy_(turned[:, :heads])


@pytest.mark.parametrize(("writes", "failed"), [(True, None), (False, "WRONG (_called): relative error nan, at most 4e-03 is right")])
def test_rope_without_the_write_is_wrong(writes, failed):
    op = SimpleNamespace(
        rope_kv_write=partial(rope, writes=writes),
        Turn=lambda cos, sin, positions: SimpleNamespace(cos=cos, sin=sin, positions=positions),
        KvPlace=lambda kv, slots, scales=None: SimpleNamespace(kv=kv, slots=slots, scales=scales),
    )
    sides = measure(rope_kv_write(op, Rows(5, 64), dry(), 4e-3), dry(), CEILINGS)["sides"]
    assert (sides[OURS].get("failed"), sides["torch"].get("failed")) == (failed, None)


def test_graphs_are_replayed_in_turn_and_a_call_s_time_is_its_share(monkeypatch):
    """The clock is replaced: a replay of ours takes 40 us for each call in it, of the other 100 us."""
    replayed = []

    def sample(graph, count):
        replayed.append((graph[0], count))
        return len(graph) * {"ours": 40.0, "theirs": 100.0}[graph[0]]

    monkeypatch.setattr(gpu_device, "_captured", lambda calls: ([call() for call in calls], None))
    monkeypatch.setattr(gpu_device, "_sample_us", sample)
    monkeypatch.setattr(gpu_device, "_called_us", lambda _: 90.0)
    sides = {"ours": [lambda: "ours"] * 3, "theirs": [lambda: "theirs"]}
    found = replace(dry(), dry=False).time(sides, 20.0)
    assert found == {"ours": (40.0, 0.0), "theirs": (100.0, 0.0)}
    turns = replayed[4:]  # behind two that warm each of them up
    assert turns == [("ours", 2), ("theirs", 1)] * 7  # graphs of 21 and 20 calls


def test_times_of_sides_stand_beside_one_another():
    class Machine(SimpleNamespace):
        def time(self, sides, _):
            assert list(sides) == [OURS, "torch"]
            return {OURS: Timed(10.0, 0.01), "torch": Timed(20.0, 0.02)}

        def time_called(self, sides):
            """Of sides that no graph can hold: none here."""
            assert sides == {}
            return {}

    machine = Machine(device=torch.device("cpu"), l2=1, room=10**9, dry=True, randn=dry().randn, prove=dry().prove, peers=())
    sides = measure(rms_norm(OPS, Rows(5, 64), machine, 4e-3), machine, CEILINGS)["sides"]
    assert (sides[OURS]["us"], sides[OURS]["spread_percent"]) == (10.0, 1.0)
    assert (sides["torch"]["speed"], sides["torch"]["verdict"]) == (2.0, "ours is faster")


def test_names_of_measurements_are_told_apart_and_need_no_quotes():
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names)
    assert not [name for name in names if set(name) & set(" ,*?[]|")]


def test_large_ones_come_first_and_every_op_is_among_them():
    ordered = chosen(measurements(dry(), dict.fromkeys(("paged_attention_decode", "rms_norm"), OPS), {}), (), ())
    assert [op for op, _ in groupby(one.kind for one in ordered)][:4] == [
        "paged_attention_decode",
        "paged_attention_decode_fp8",
        "paged_attention_decode_int8",
        "rms_norm",
    ]
    assert [one.rank for one in ordered] == sorted({one.rank for one in ordered})


def test_configs_are_every_combination_over_the_kernel_s_choice():
    @dataclass(frozen=True)
    class Config:
        tile: int = 64
        stages: int = 3

    op = SimpleNamespace(Config=Config, decode_config=lambda *_: Config(), __name__="op")
    every = measurements(dry(), {"paged_attention_decode": op}, {"paged_attention_decode": ["tile=32", "stages=2"]})
    found = [one for one in every if one.name.startswith("paged_attention_decode/")]  # keys of 8 bits are another op's cases
    assert [one.name.partition(" ")[2] for one in found[:3]] == ["", "[tile=32 stages=3]", "[tile=64 stages=2]"]
    assert len({one.rank for one in found}) == len(found) == 3 * len([case for case in cases() if case.op == "paged_attention_decode"])
    assert config_grid(op, "tile=32|128") == [Config(32), Config(128)]
    assert config_grid(op, "tile=32|128,stages=2|4") == [Config(32, 2), Config(32, 4), Config(128, 2), Config(128, 4)]
    with pytest.raises(ValueError, match="tyle"):
        config_grid(op, "tyle=1")


@pytest.fixture(scope="module")
def script():
    """bench/gpu.py, in this process. By its path: beside it stands an operator.py, which must not be found in place of Python's."""
    spec = importlib.util.spec_from_file_location("gpu", ROOT / "bench/gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def command(script):
    return script.main


def test_without_a_gpu_it_says_so_and_ends_with_2(command, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command([]) == 2
    assert capsys.readouterr() == ("", "bench/gpu.py needs a CUDA device, and torch finds none.\n")


OPS_OF_THE_TREE = sorted({case.op for case in cases() if case.module in present()[0]})


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="computes with Triton's interpreter")
@pytest.mark.deep
@pytest.mark.parametrize("op", OPS_OF_THE_TREE)
def test_every_op_of_the_tree_is_measured_and_right(command, op, tmp_path, capsys):
    """At tiny shapes: that ours is called as its file says."""
    kinds = ("ragged", "flat", "plain", "norms")
    names = [case.name for case in cases() if case.op == op and (case.size == "small" or any(kind in case.name for kind in kinds))]
    if op.endswith(("_fp8", "_int8")):  # the same call with other numbers, and 15 s each
        names = names[:1]
    assert command(["--dry", "--parts", "kernels", "--only", ",".join(names), "--out", str(tmp_path / "out.json")]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert set(names) <= set(results)
    assert {name: result["sides"][OURS].get("failed") for name, result in results.items()} == dict.fromkeys(results)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="computes with Triton's interpreter")
def test_a_config_is_measured_beside_the_kernel_s_own_choice(command, capsys):
    pytest.importorskip("pagoda_kernels.gpu.paged_attention_decode")
    command(["--dry", "--only", "decode/b1-1k", "--configs", "paged_attention_decode:tile=32,split=64"])
    results = json.loads(capsys.readouterr().out)["results"]
    sides = [side for name, result in results.items() if "tile=32" in name for side in result["sides"].items()]
    assert [(name, side.get("failed")) for name, side in sides] == [(OURS, None), ("own choice", None)]


def test_processes_share_what_is_to_be_compiled_and_nothing_is_compiled_twice(script):
    done = []
    left = [Measurement(str(name), (name,), dict, compile=partial(done.append, name)) for name in range(7)]
    left.insert(3, Measurement("the engine", (0,), dict))
    for index in range(3):
        script.compiled(left, index, 3)
    assert sorted(done) == list(range(7))


def test_compiling_calls_ours_once_and_survives_what_fails():
    called = []

    def norm(x, *_, out):
        called.append(x.shape)
        raise RuntimeError("does not compile")

    found = measurements(dry(), {"rms_norm": SimpleNamespace(rms_norm=norm)}, {})
    found[0].compile()
    assert called == [(5, 96)]
