"""Reasons of a ServingProfile's conditions. Nouns only; listed by `table`."""

from __future__ import annotations

from typing import Final

from pagoda_contracts.conditions.types import READY, SERVING_PROFILE, STALLED, Reason

ACCEPTED: Final = Reason(
    "Accepted",
    READY,
    "Services can use the profile. The message says what it offers, and which services cannot use it.",
    "Nothing. If the message says that some services cannot use it, correct the field that it names, or give them another profile.",
    kind=SERVING_PROFILE,
)
UNUSABLE: Final = Reason(
    "InvalidSpec",
    STALLED,
    "No service can use the profile: a field cannot be read, or no replica can be made with it. Running replicas keep serving.",
    "Correct the field that the message names.",
    person_only=True,
    kind=SERVING_PROFILE,
)
