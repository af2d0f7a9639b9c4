"""What quota lets one service have now. Pure; made by the ledger, read by `plan` and `status`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grant:
    """Most replicas that a service may have, old revisions' counted as its own; most of the current revision beside what old ones hold;
    and by which quota, said for people. `unread`: nobody can read it, and what old revisions give back is of another kind than the
    current one needs."""

    replicas: int
    room: int
    why: str
    unread: bool = False
