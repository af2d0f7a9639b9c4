"""The device's health: the verdict over a reading, what is read of a GPU and of a MIG slice, and how an Xid reaches the front's loop."""

import asyncio
import inspect
from dataclasses import replace

import pynvml
import pytest
from pagoda_daemon.api.grpc.watch import Identity, frame
from pagoda_daemon.core.messages import Ready
from pagoda_daemon.health.device import THROTTLES, DeviceIdentity, DeviceReading, Grade, judge
from pagoda_daemon.health.nvml import DeviceReader, DeviceWatch
from pagoda_daemon.health.replica import Replica
from pagoda_daemon.health.xids import XIDS, Blame, xid
from support.engine.fake_nvml import SLICES, UUID, FakeNvml

GPU = DeviceIdentity(f"GPU-{UUID}", "H100")
SLICE = DeviceIdentity(f"MIG-{SLICES[0]}", "H100 MIG 1g.10gb", "", 9, 0)
LOADED = Ready(64, 8, 16, 40, 2, device=UUID)


@pytest.mark.parametrize(
    ("changes", "grade", "why"),
    [
        ({}, Grade.OK, ""),
        ({"uncorrected": 0, "before": 0, "remap_pending": False, "remap_failed": False}, Grade.OK, ""),
        ({"xids": {13: 2, 31: 1, 43: 1, 45: 9, 68: 1}}, Grade.OK, ""),
        ({"xids": {999: 1}}, Grade.OK, ""),
        ({"xids": {79: 1}}, Grade.FAILED, f"H100 GPU-{UUID}: it has fallen off the bus (Xid 79)"),
        ({"xids": {63: 1, 48: 1}}, Grade.FAILED, "its memory has an error that cannot be corrected (Xid 48)"),
        ({"xids": {94: 1}}, Grade.DEGRADED, "a memory error ended the one process that used that memory (Xid 94)"),
        ({"remap_pending": True}, Grade.DEGRADED, "row remapping pending"),
        ({"remap_pending": True, "remap_failed": True}, Grade.FAILED, "row remapping failed"),
        ({"uncorrected": 5, "before": 5}, Grade.DEGRADED, "had 5 errors that cannot be corrected since its driver"),
        ({"uncorrected": 5, "before": None}, Grade.DEGRADED, "had 5 errors that cannot be corrected since its driver"),
        ({"uncorrected": 5, "before": 3}, Grade.FAILED, "had 2 errors that cannot be corrected since this replica started"),
        ({"uncorrected": 5, "before": 3, "identity": SLICE}, Grade.DEGRADED, "had 5 errors"),
        ({"throttled": ("power brake", "hardware slowdown")}, Grade.DEGRADED, "held down: power brake, hardware slowdown"),
        ({"lost": "GPU is lost"}, Grade.FAILED, "it cannot be read any more (GPU is lost)"),
    ],
)
def test_a_device_has_failed_if_it_must_be_reset_and_is_degraded_if_it_still_computes(changes, grade, why):
    found = judge(replace(DeviceReading(GPU), **changes))
    assert found.grade is grade
    assert why in found.why
    assert bool(found.why) is (grade is not Grade.OK)


def test_nvidias_device_plugin_calls_no_other_xids_the_applications_but_for_one():
    """Its list (internal/rm/health.go), and 109, which the catalog lets the GPU be reset for."""
    assert {code for code in (13, 31, 43, 45, 68, 109) if xid(code).blame is not Blame.APPLICATION} == {109}
    assert all(found.what and found.what[0].islower() for found in XIDS.values())


def test_the_fake_has_nvmls_own_signatures():
    made = FakeNvml()
    names = [name for name in dir(FakeNvml) if name.startswith("nvml")]
    for name in names:
        theirs = inspect.signature(inspect.unwrap(getattr(pynvml, name)))
        assert [*inspect.signature(getattr(made, name)).parameters] == [*theirs.parameters], name
    assert len(names) > 15
    assert all(isinstance(getattr(pynvml, name), int) for name in THROTTLES)


def test_a_whole_gpu_is_read():
    fake = FakeNvml()
    fake.uncorrected, fake.remapped, fake.throttled = 2, (1, 0, 1, 0), pynvml.nvmlClocksEventReasonHwThermalSlowdown
    assert DeviceReader(fake, UUID).read() == DeviceReading(
        DeviceIdentity(f"GPU-{UUID}", "NVIDIA H100 80GB HBM3", "580.95.05"),
        memory_used=3 * 2**30,
        memory_total=80 * 2**30,
        celsius=41,
        uncorrected=2,
        before=2,
        remap_pending=True,
        remap_failed=False,
        throttled=("too hot, by the hardware",),
    )


@pytest.mark.parametrize("uuid", [UUID, SLICES[1]], ids=["torch knows the GPU", "torch knows the slice"])
def test_of_a_partitioned_gpu_the_slice_is_read(uuid):
    found = DeviceReader(FakeNvml(slices=2), uuid).read()
    mine = SLICES[uuid == SLICES[1]]
    assert found.identity[:2] == (f"MIG-{mine}", "NVIDIA H100 80GB HBM3 MIG 1g.10gb")
    assert (found.identity.gpu_instance, found.identity.compute_instance) == (9 + SLICES.index(mine), 0)
    assert found.memory_total == 10 * 2**30, "the slice's memory, not its parent's"


def test_what_a_device_does_not_tell_is_unknown_and_no_fault():
    fake = FakeNvml()
    fake.unsupported = {name for name in dir(fake) if name.startswith("nvmlDeviceGet")} | {"nvmlEventSetCreate"}
    reader = DeviceReader(fake, UUID)
    found = reader.read()
    assert (found.memory_total, found.celsius, found.uncorrected, found.remap_failed, found.throttled) == (None, None, None, None, ())
    assert judge(found).grade is Grade.OK
    assert not reader.hears
    assert not reader.heard(10_000)


@pytest.mark.parametrize("why", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED])
def test_a_device_that_was_lost_keeps_what_was_known_of_it(why):
    fake = FakeNvml()
    reader = DeviceReader(fake, UUID)
    before = reader.read()
    fake.lost = why
    assert reader.read() == replace(before, lost=str(pynvml.NVMLError(why)))
    fake.lost = None
    assert reader.read() == before


def test_xids_of_other_slices_are_not_ours_and_a_burst_is_heard_at_once():
    fake = FakeNvml(slices=2)
    reader = DeviceReader(fake, SLICES[0])
    fake.raise_xid(48, instance=10)
    assert not reader.heard(0)
    for code, instance in ((13, 9), (13, 9), (48, 10), (79, 0xFFFFFFFF)):
        fake.raise_xid(code, instance)
    assert reader.heard(0)
    assert reader.read().xids == {13: 2, 79: 1}


async def until(holds):
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.001)


async def test_an_xid_turns_the_state_failed_between_two_readings():
    fake, replica, changes = FakeNvml(), Replica(born=0.0), []
    replica.listeners.append(lambda: changes.append(replica.device.verdict.grade))
    watch = DeviceWatch(replica, lambda: fake, every_s=3600)
    assert fake.running == 0, "which device is not known before the model is loaded"
    replica.limits = LOADED
    replica.changed()
    await until(lambda: replica.device.reading)
    assert frame(replica, Identity((), "", ""), 1, 0.0).device_fault == ""
    fake.raise_xid(79)
    await until(lambda: replica.device.fault)
    state = frame(replica, Identity((), "", ""), 1, 0.0)
    assert state.device_fault == f"NVIDIA H100 80GB HBM3 GPU-{UUID}: it has fallen off the bus (Xid 79)"
    assert not state.deep_check_failed
    assert changes == [Grade.OK, Grade.FAILED]
    watch.close()
    await until(lambda: not fake.running)


async def test_a_degraded_device_is_shown_and_no_fault():
    fake, replica = FakeNvml(), Replica(born=0.0, limits=LOADED)
    fake.remapped = (0, 1, 1, 0)
    watch = DeviceWatch(replica, lambda: fake, every_s=3600)
    await until(lambda: replica.device.reading)
    assert (replica.device.verdict.grade, replica.device.fault) == (Grade.DEGRADED, "")
    watch.close()


@pytest.mark.parametrize("trouble", ["no module", "no driver", "another device"])
async def test_without_nvml_nothing_is_read_and_nothing_fails(trouble, caplog):
    fake = FakeNvml()
    fake.lost = pynvml.NVML_ERROR_LIBRARY_NOT_FOUND if trouble == "no driver" else None

    def given():
        if trouble == "no module":
            raise ImportError("No module named 'pynvml'")
        return fake

    uuid = "0" if trouble == "another device" else UUID
    replica = Replica(born=0.0, limits=Ready(64, 8, 16, 40, 2, device=uuid))
    watch = DeviceWatch(replica, given)
    await asyncio.to_thread(watch._thread.join, 30)
    await asyncio.sleep(0)
    assert (replica.device.reading, replica.device.fault) == (None, "")
    watch.close()


async def test_on_a_cpu_no_thread_is_started():
    watch = DeviceWatch(Replica(born=0.0, limits=Ready(64, 8, 16, 40, 2)), lambda: pytest.fail("loaded"))
    assert watch._thread is None
