"""The gate of GPU binaries: what it reads, what it refuses, and that a drift from the ledger is seen.

What needs the compiler runs in one process of its own, since in this one kernels are interpreted.
"""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from pagoda_kernels.aot import __main__ as aot
from pagoda_kernels.aot.facts import Facts, amd_facts, nvidia_facts, refusals
from pagoda_kernels.aot.ledger import Ledger, drift, proof
from pagoda_kernels.exports import Bands

FACTS = Facts(
    shared=49152, warps=4, registers=100, spills=0, mma={"HGMMA": 4}, depth=2, tma=0, loads=24, wide=20, converts=8, instructions=400
)

PTX = """
.version 9.1
.target sm_90a
.visible .entry op(.param .u64 .ptr .global .align 1 op_param_0)
{
	.reg .pred 	%p<3>;
	ld.param.b64 	%rd1, [op_param_0];
	// begin inline asm
	@%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
	// end inline asm
	@!%p1 ld.global.L1::evict_first.b16 { %rs1 }, [ %rd2 + 0 ];
	cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
	cp.async.ca.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x8;
	cp.async.commit_group;
	cp.async.wait_group 	0;
	cp.async.wait_group 	4;
	@%p2 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];
	@%p2 cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];
	cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r2, %r3}], [%r4];
	cvt.s64.s32 	%rd1, %r1;
	cvt.rn.bf16x2.f32 	%r1, %r2, %r3;
	wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%r1,%r2}, %rd1, %rd2, 1, 1, 1, 0, 1;
	ret;
}
"""
USAGE = "Resource usage:\n Function op:\n  REG:3 STACK:16 SHARED:0 LOCAL:8 CONSTANT[0]:384 TEXTURE:0 SURFACE:0 SAMPLER:0\n"

ASSEMBLY = """
	global_load_dwordx4 v[2:5], v[0:1], off
	buffer_load_dword v6, v7, s[0:3], 0 offen
	v_mfma_f32_32x32x8_bf16 v[0:15], v[2:3], v[4:5], v[0:15]
	v_cvt_f32_bf16 v1, v2
	s_endpgm
    .sgpr_spill_count: 2
    .vgpr_count:     98
    .vgpr_spill_count: 3
"""


def test_what_ptx_says():
    facts = nvidia_facts(PTX, USAGE, shared=1, warps=2)
    assert facts == Facts(
        shared=1, warps=2, registers=3, spills=24, mma={"HGMMA": 1}, depth=4, tma=2, loads=4, wide=2, converts=1, instructions=15
    )
    assert nvidia_facts("", USAGE, shared=1, warps=2).depth is None


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "HMMA"),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32", "HMMA"),
        ("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", "IMMA"),
        ("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", "QMMA"),
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16", "HGMMA"),
        ("wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e5m2", "QGMMA"),
        ("wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8", "IGMMA"),
        ("@%p1 tcgen05.mma.cta_group::1.kind::f16", "UTCHMMA"),
        ("@%p1 tcgen05.mma.cta_group::1.kind::tf32", "UTCHMMA"),
        ("@%p1 tcgen05.mma.cta_group::1.kind::f8f6f4", "UTCQMMA"),
        ("@%p1 tcgen05.mma.cta_group::1.kind::i8", "UTCIMMA"),
        ("@%p1 tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.scale_vec::4X", "UTCOMMA"),
    ],
)
def test_what_multiplies_matrices(instruction, kind):
    assert nvidia_facts(f"\t{instruction} [ %r1 + 0 ], %rd1;\n", USAGE, shared=1, warps=2).mma == {kind: 1}


def test_what_amds_assembly_says():
    facts = amd_facts(ASSEMBLY, shared=1, warps=2)
    assert facts == Facts(
        shared=1, warps=2, registers=98, spills=5, mma={"MFMA": 1}, depth=None, tma=0, loads=2, wide=1, converts=1, instructions=5
    )
    with pytest.raises(ValueError, match="vgpr_count"):
        amd_facts("", shared=1, warps=2)


BANDS = Bands(registers=100, mma={"sm_90": "HGMMA", "sm_89": "HMMA"}, depth=2, wide_loads=0.8)


def test_what_keeps_its_bands_ships():
    assert refusals("sm_90", FACTS, BANDS) == []
    assert refusals("sm_90", replace(FACTS, depth=None, tma=1), BANDS) == []
    assert refusals("gfx942", replace(FACTS, depth=None, wide=0), BANDS) == []


@pytest.mark.parametrize(
    ("arch", "change", "says"),
    [
        ("sm_90", {"shared": 232449}, "232449 bytes of shared memory"),
        ("sm_80", {"shared": 166913}, "the device has 166912"),
        ("gfx942", {"shared": 65537}, "the device has 65536"),
        ("sm_90", {"spills": 1}, "registers are spilled: 1 "),
        ("sm_90", {"registers": 101}, "at most 100"),
        ("sm_89", {}, "multiplied by HGMMA, HMMA is expected"),
        ("sm_90", {"mma": {"HGMMA": 4, "HMMA": 2}}, "HGMMA is expected"),
        ("sm_90", {"mma": {}}, "multiplied by nothing"),
        ("sm_90", {"depth": 1}, "1 loads stay in flight, a depth of 2"),
        ("sm_90", {"depth": None}, "nothing is loaded ahead"),
        ("sm_90", {"wide": 19}, "19 of 24 loads are of 128 bits"),
    ],
)
def test_what_leaves_its_bands_is_refused(arch, change, says):
    refused = refusals(arch, replace(FACTS, **change), BANDS)
    assert len(refused) == 1
    assert says in refused[0]


def ledger(triton="3.9.0", **changes):
    return Ledger(triton, {"op": {"sm_90": replace(FACTS, **changes)}})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"registers": 110},
        {"registers": 90},
        {"instructions": 500},
        {"loads": 20},
        {"wide": 25},
        {"converts": 10},
        {"mma": {"HGMMA": 16}},
    ],
)
def test_a_little_drift_is_tolerated(change):
    assert drift(ledger(), ledger(**change)) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"registers": 111}, "op on sm_90: registers was 100, is 111"),
        ({"registers": 89}, "op on sm_90: registers was 100, is 89"),
        ({"shared": 49153}, "op on sm_90: shared was 49152, is 49153"),
        ({"warps": 8}, "op on sm_90: warps was 4, is 8"),
        ({"spills": 1}, "op on sm_90: spills was 0, is 1"),
        ({"mma": {"HMMA": 4}}, "op on sm_90: mma was {'HGMMA': 4}, is {'HMMA': 4}"),
        ({"depth": 1}, "op on sm_90: depth was 2, is 1"),
        ({"depth": None}, "op on sm_90: depth was 2, is None"),
        ({"tma": 1}, "op on sm_90: tma was 0, is 1"),
        ({"wide": 12}, "op on sm_90: wide was 20, is 12"),
        ({"converts": 11}, "op on sm_90: converts was 8, is 11"),
        ({"triton": "3.8.0"}, "the ledger is of Triton 3.9.0, installed is 3.8.0"),
    ],
)
def test_more_drift_is_not(change, says):
    assert drift(ledger(), ledger(**change)) == [says]


def test_a_ledger_has_every_binary_and_no_other():
    other = Ledger("3.9.0", {"op": {"sm_80": FACTS}})
    assert drift(ledger(), other) == ["op on sm_80: not in the ledger", "op on sm_90: no longer exported"]


@pytest.mark.parametrize(
    "kept", [ledger(), Ledger("3.9.0", {}), Ledger("3.9.0", {"a": {"sm_80": FACTS, "gfx942": FACTS}, "b": {"sm_90": FACTS}})]
)
def test_a_ledger_is_what_was_written(kept):
    assert Ledger.parsed(kept.text()) == kept


def test_what_was_compiled_is_proven_until_it_or_what_was_found_changes():
    kept = {"copy": {"sm_90": FACTS}}
    ledger = Ledger.parsed(Ledger("3.9.0", kept, {"copy": proof("source", kept["copy"])}).text())
    assert ledger.proves("copy", "source")
    assert not ledger.proves("copy", "other source")
    assert not ledger.proves("other", "source")
    assert not replace(ledger, kernels={"copy": {"sm_90": replace(FACTS, registers=FACTS.registers + 1)}}).proves("copy", "source")
    assert not replace(ledger, proofs={}).proves("copy", "source")


def test_nothing_is_compiled_while_kernels_are_interpreted(monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert aot.main(["--bands"]) == 1
    assert "TRITON_INTERPRET" in capsys.readouterr().err


SCRIPT = """
import contextlib, io, json, sys
from pathlib import Path
from pagoda_kernels.aot import compiled
from pagoda_kernels.aot.__main__ import main
from support.kernels.sound.toys import EXPORTS

def run(*arguments):
    words = io.StringIO()
    with contextlib.redirect_stderr(words):
        code = main(arguments)
    return [code, words.getvalue()]

file = Path(sys.argv[1])
sound = ["--package", "support.kernels.sound", "--ledger", str(file)]
out = {"faulty": run("--package", "support.kernels.faulty", "--ledger", str(file)), "untouched": not file.exists()}
out |= {"written": run(*sound), "same": run(*sound, "--check")}
text = file.read_text()
file.write_text(text.replace('"depth": 2', '"depth": 4', 1))
out |= {"drift": run(*sound, "--check"), "kept": '"depth": 4' in file.read_text(), "bands": run(*sound, "--bands")}
before = [compiled.identity(export) for export in EXPORTS]
compiled.facts.__file__ = sys.argv[1]
out |= {"reader": [one == compiled.identity(export) for one, export in zip(before, EXPORTS)]}
out |= {"none": run("--package", "support.kernels.nothing", "--ledger", str(file), "--check")}
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """What the command said, by what it was run for."""
    path = tmp_path_factory.mktemp("aot")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(path / "cache"), "PYTHONPATH": "tests"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT, path / "ledger.json"], env=environment, check=True, capture_output=True, text=True
    )
    return json.loads(done.stdout)


@pytest.mark.deep
@pytest.mark.parametrize(
    "says",
    [
        "spills on sm_90: registers are spilled",
        "too large on sm_90: 262144 bytes of shared memory, the device has 232448",
        "not pipelined on sm_90: nothing is loaded ahead, a depth of 0 is expected",
        "too few rows on sm_90: matrices are multiplied by HMMA, HGMMA is expected",
        "hungry on sm_90: ",
        "narrow on sm_90: 0 of 8 loads are of 128 bits",
        "wrong on sm_90: does not compile: ",
    ],
)
def test_a_kernel_that_may_not_ship_is_refused(runs, says):
    code, words = runs["faulty"]
    assert code == 1
    assert [line for line in words.splitlines() if line.startswith(says)]
    assert runs["untouched"]  # nothing refused is recorded


@pytest.mark.deep
def test_sound_kernels_are_recorded_and_then_the_same(runs):
    assert runs["written"] == [0, ""]
    assert runs["same"] == [0, ""]


@pytest.mark.deep
def test_a_planted_drift_fails_the_check_which_writes_nothing(runs):
    code, words = runs["drift"]
    assert code == 1
    assert words.startswith("product on sm_80: depth was 4, is 2\n")
    assert "out of date" in words
    assert runs["kept"]
    assert runs["bands"] == [0, ""]


@pytest.mark.deep
def test_what_another_reader_found_proves_nothing(runs):
    assert runs["reader"] == [False, False]


@pytest.mark.deep
def test_exports_that_are_gone_fail_the_check(runs):
    code, words = runs["none"]
    assert code == 1
    assert "copy on gfx942: no longer exported" in words
