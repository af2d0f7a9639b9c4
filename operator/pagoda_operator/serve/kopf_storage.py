"""What Kopf would remember of objects for handlers of changes, which we have none of. Called by handlers.py.

Kopf copies each object two times to compare it with what it stored last, though `on.event` asks for no comparison: a tenth of our CPU
under changes.
"""

from __future__ import annotations

from collections.abc import Iterable

import kopf


class NoDifference(kopf.DiffBaseStorage):
    """Nothing of an object is compared, nothing is stored."""

    def build(
        self,
        *,
        body: kopf.Body,  # noqa: ARG002 (Kopf's words)
        extra_fields: Iterable[kopf.FieldSpec] | None = None,  # noqa: ARG002
    ) -> kopf.BodyEssence:
        """Nothing of it matters."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:  # noqa: ARG002
        """Nothing was stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing to store."""
