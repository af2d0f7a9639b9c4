"""Xids: the errors of a GPU that NVIDIA's driver reports by number, and what each means for a replica on it. Nouns only; read by `device`.

By the "Resolution Bucket (Immediate Action)" of the Xid catalog for A100 and newer
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): RESTART_APP is APPLICATION, for a restart of the process cures it
(its steps raise, and the engine's own probe judges it); RESET_GPU, RESTART_BM and the workflow of 48 are DEVICE; IGNORE with a cause in
the hardware is WORN. NVLink's (74, 144 to 150) are WORN: a replica computes on one device and uses no link. 109 is DEVICE as in the
catalog, though NVIDIA's device plugin counts it among the application's (internal/rm/health.go).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple


class Blame(StrEnum):
    """Who is at fault, and so what helps."""

    APPLICATION = "application"
    """The process: it ends by itself if it cannot go on."""
    WORN = "worn"
    """The device, which still computes; it is to be reset or looked at when convenient."""
    DEVICE = "device"
    """The device, which must be reset or replaced first."""


class Xid(NamedTuple):
    """`what` happened, for a person."""

    blame: Blame
    what: str


_APPLICATION: Final = {
    8: "a channel did not answer in time",
    11: "it was sent an invalid command",
    13: "a kernel raised an exception",
    31: "a kernel used an address that is not its own",
    32: "it was sent an invalid command",
    43: "a process was stopped after an error of its own",
    45: "a process was ended after another error",
    68: "its video decoder raised an exception",
    69: "a kernel raised an exception",
    80: "it was sent damaged commands",
    137: "a process used an address of another GPU that is not its own",
}
_WORN: Final = {
    63: "a row of its memory was replaced by a spare one",
    74: "an NVLink connection failed",
    92: "it corrects many memory errors",
    94: "a memory error ended the one process that used that memory",
    121: "it corrects errors of its connection to the CPU",
    **dict.fromkeys(range(144, 151), "an NVLink connection failed"),
    154: "its driver wants it reset or its node restarted",
    156: "a part of it was taken out of use",
    157: "a part of it could not be taken out of use",
}
_DEVICE: Final = {
    46: "it stopped processing",
    48: "its memory has an error that cannot be corrected",
    62: "its internal controller halted",
    64: "a row of its memory could not be replaced by a spare one",
    79: "it has fallen off the bus",
    95: "a memory error may have reached every process on it",
    109: "it could not switch between processes",
    110: "it reports a security fault",
    119: "its system processor does not answer",
    120: "its system processor failed",
    136: "a link could not be trained",
    140: "its memory has an error that cannot be corrected",
    143: "it could not be initialised",
    158: "it stopped answering",
}
XIDS: Final = {
    code: Xid(blame, what)
    for blame, table in ((Blame.APPLICATION, _APPLICATION), (Blame.WORN, _WORN), (Blame.DEVICE, _DEVICE))
    for code, what in table.items()
}


def xid(code: int) -> Xid:
    """One that is not in the table does not end a replica's service: most of those are of parts that a replica does not use."""
    return XIDS.get(code, Xid(Blame.APPLICATION, "an error that is not in Pagoda's table"))
