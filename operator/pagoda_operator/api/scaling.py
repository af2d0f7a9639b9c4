"""What scaling decided for a service, and what is kept of it. Values; made in decide/scale, read with the observed state. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for at a time: by everything together, and by what lasts, the load and late first tokens."""

    at: float
    replicas: int
    load: int


@dataclass(frozen=True, slots=True)
class Decision:
    """`replicas` from now on; `asked` is to be kept in History; `reason` says why in a sentence, `cause` in a word that changes only
    where the sentence's point does."""

    replicas: int
    asked: Asked
    reason: str
    cause: str = "load"
