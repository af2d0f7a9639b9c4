"""Writes ServingProfiles' statuses if they differ. Made by process.py; what they say is in `decide/status/profile.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from pagoda_placement.values import stamp

from pagoda_operator.api.state import PROFILES
from pagoda_operator.decide.status.profile import Profile, profile_status
from pagoda_operator.run.apply import Cluster, apply_status
from pagoda_operator.run.rounds import TICK_S, Rounds
from pagoda_operator.watch.caches import Caches
from pagoda_operator.watch.triggers import Triggers


class ProfileStatuses:
    """`steady`: a monotonic clock, in seconds."""

    def __init__(
        self, cluster: Cluster, caches: Caches, triggers: Triggers, clock: Callable[[], datetime], steady: Callable[[], float]
    ) -> None:
        self._cluster, self._caches, self._triggers, self._clock, self._rounds = cluster, caches, triggers, clock, Rounds(steady)

    async def run(self) -> None:
        """Without end."""
        while True:
            await asyncio.sleep(TICK_S)
            await self.write()

    async def write(self) -> None:
        """One round."""
        users = self._triggers.users_of_profiles()

        async def one(profile: Profile) -> None:
            wanted = profile_status(profile, users[profile.name], stamp(self._clock().timestamp()))
            if wanted != profile.status:
                await apply_status(self._cluster, PROFILES, profile.meta, wanted)

        await self._rounds.each(self._caches.all(PROFILES), one, lambda profile: users[profile.name])
