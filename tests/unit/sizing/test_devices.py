"""The catalogue against what its sources print, transcribed here a second time."""

import re
from datetime import date

import pytest
from pagoda_sizing.devices import GB, GIB, TERA, catalogue, find, profiles_of
from pagoda_sizing.quant import weight_format

WHOLE = [device for device in catalogue() if not device.profile]

# `nvidia-smi mig -lgip`: profile, memory in GiB, SMs; then the SMs of the GPU. Outputs of drivers differ: the least memory of those found.
LGIP = {
    # https://docs.nvidia.com/datacenter/tesla/mig-user-guide (A100); several public transcripts
    "a100-40": (108, "1g.5gb 4.75 14, 1g.10gb 9.62 14, 2g.10gb 9.62 28, 3g.20gb 19.50 42, 4g.20gb 19.50 56, 7g.40gb 39.25 98"),
    "a100-80": (108, "1g.10gb 9.50 14, 1g.20gb 19.50 14, 2g.20gb 19.50 28, 3g.40gb 39.25 42, 4g.40gb 39.25 56, 7g.80gb 78.75 98"),
    "a30": (56, "1g.6gb 5.81 14, 2g.12gb 11.69 28, 4g.24gb 23.44 56"),
    # NVIDIA H100 80GB HBM3
    "h100": (132, "1g.10gb 9.75 16, 1g.20gb 19.62 26, 2g.20gb 19.62 32, 3g.40gb 39.50 60, 4g.40gb 39.50 64, 7g.80gb 79.25 132"),
    # NVIDIA H100 PCIe, driver 570.169
    "h100-pcie": (114, "1g.10gb 9.75 14, 1g.20gb 19.62 14, 2g.20gb 19.62 30, 3g.40gb 39.50 46, 4g.40gb 39.50 62, 7g.80gb 79.25 114"),
    # https://github.com/NVIDIA/gpu-operator/pull/900 shows 10.75 and 21.62
    "h100-nvl": (132, "1g.12gb 10.62 16, 1g.24gb 21.50 26, 2g.24gb 21.50 32, 3g.47gb 46.12 60, 4g.47gb 46.12 64, 7g.94gb 92.62 132"),
    "gh200": (132, "1g.12gb 11.00 16, 1g.24gb 23.00 26, 2g.24gb 23.00 32, 3g.48gb 46.50 60, 4g.48gb 46.50 64, 7g.96gb 93.00 132"),
    # https://github.com/NVIDIA/mig-parted/issues/120
    "h200": (132, "1g.18gb 16.00 16, 1g.35gb 32.25 26, 2g.35gb 32.25 32, 3g.71gb 69.50 60, 4g.71gb 69.50 64, 7g.141gb 140.00 132"),
    # https://github.com/NVIDIA/gpu-operator/pull/1351; of 3g, 4g and 7g the memory is not published (0)
    "b200": (148, "1g.23gb 20.50 18, 1g.45gb 44.25 30, 2g.45gb 44.25 36, 3g.90gb 0 54, 4g.90gb 0 72, 7g.180gb 0 148"),
    # https://github.com/bigstack-oss/cubecos/issues/312
    "rtxpro6000": (188, "1g.24gb 23.12 46, 2g.48gb 47.38 94, 4g.96gb 95.00 188"),
}

# MiB that nvidia-smi reports of the whole device.
DRIVER = {
    "t4": 15360,
    "a10": 23028,
    "a10g": 23028,
    "a30": 24576,
    "l4": 23034,
    "l40s": 46068,
    "rtx4090": 24564,
    "rtxpro6000": 97887,
    "a100-40": 40960,
    "a100-80": 81920,
    "h100-pcie": 81559,
    "h100": 81559,
    "h100-nvl": 95830,
    "gh200": 97871,
    "h200": 143771,
    "b200": 183359,
    "b300": 275040,
}

# TFLOPS of data sheets that print them with sparsity, and the bandwidth in GB/s.
SPARSE = {
    "h100": ({"bf16": 1979, "fp8": 3958, "int8": 3958}, 3350),
    "h100-pcie": ({"bf16": 1513, "fp8": 3026, "int8": 3026}, 2000),
    "h100-nvl": ({"bf16": 1671, "fp8": 3341, "int8": 3341}, 3900),
    "gh200": ({"bf16": 1979, "fp8": 3958, "int8": 3958}, 4000),
    "h200": ({"bf16": 1979, "fp8": 3958, "int8": 3958}, 4800),
    "b300": ({"bf16": 4500, "fp8": 9000, "fp4": 27000}, 7700),
    "rtxpro6000": ({"bf16": 1000, "fp8": 2000, "fp4": 4000}, 1597),
    "a30": ({"bf16": 330, "int8": 661}, 933),
    "a10g": ({"bf16": 140, "int8": 280}, 600),
    "a100-80": ({"bf16": 624, "int8": 1248}, 2039),
}


def printed(name):
    return [line.split() for line in LGIP[name][1].split(", ")]


@pytest.mark.parametrize("name", sorted({device.whole for device in catalogue() if device.profile}))
def test_the_slices_are_those_that_nvidia_smi_lists(name):
    assert [(part.profile, part.sms) for part in profiles_of(name)] == [(profile, int(sms)) for profile, _, sms in printed(name)]
    assert find(name).sms == LGIP[name][0]


@pytest.mark.parametrize("name", sorted(LGIP))
def test_a_slice_is_not_larger_than_nvidia_smi_shows_and_computes_by_its_sms(name):
    whole = find(name)
    for part, (profile, gib, sms) in zip(profiles_of(name), printed(name), strict=True):
        sold = int(re.fullmatch(r"\d+g\.(\d+)gb", profile)[1]) * GB
        assert part.memory_bytes <= (float(gib) * GIB or sold)
        assert part.memory_bytes >= 0.94 * sold
        assert part.rate("bf16") == pytest.approx(whole.rate("bf16") * int(sms) / whole.sms)


@pytest.mark.parametrize(
    ("name", "less"), [("h200:1g.18gb", 0.025), ("h200:2g.35gb", 0.017), ("b200:1g.23gb", 0.021), ("h100-nvl:1g.12gb", 0.029)]
)
def test_some_slices_are_less_than_their_share_of_the_datasheet(name, less):
    part = find(name)
    eighths = round(part.bytes_per_s / find(part.whole).bytes_per_s * 8)
    assert 1 - part.memory_bytes / (find(part.whole).memory_bytes * eighths / 8) == pytest.approx(less, abs=0.001)


@pytest.mark.parametrize("name", sorted(DRIVER))
def test_a_device_is_not_larger_than_its_driver_reports(name):
    assert 0.9 < find(name).memory_bytes / (DRIVER[name] << 20) <= 1


@pytest.mark.parametrize("name", sorted(SPARSE))
def test_rates_are_those_of_the_data_sheet_without_sparsity(name):
    sparse, bandwidth = SPARSE[name]
    found = find(name)
    assert {key: round(rate / TERA) for key, rate in found.flops.items()} == {
        key: pytest.approx(rate / 2, abs=1) for key, rate in sparse.items()
    }
    assert found.bytes_per_s == bandwidth * GB


def test_bf16_on_turing_is_computed_in_fp32():
    t4 = find("t4")
    assert [t4.rate(weight_format(name).rate) / TERA for name in ("bf16", "int8", "int4")] == [8.1, 130, 65]


def test_the_catalogue_names_the_devices_that_are_promised():
    promised = "t4 a10 a10g a30 l4 l40s rtx4090 rtxpro6000 a100-40 a100-80 h100-pcie h100 h100-nvl gh200 h200 b200 b300 mi300x cpu"
    assert [device.name for device in WHOLE] == promised.split()
    names = [device.name for device in catalogue()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("device", WHOLE, ids=lambda device: device.name)
def test_every_device_says_where_its_numbers_come_from_and_a_price_when_and_of_which_kind(device):
    assert device.sources
    assert device.price_source
    if device.price_per_hour is None:
        assert (device.price_kind, device.price_read) == ("", "")
    else:
        assert device.price_kind in ("on demand", "committed", "list")
        assert date(2026, 5, 1) <= date.fromisoformat(device.price_read)
