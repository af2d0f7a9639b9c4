"""The operator as installed, but for what a test changes: `operator_under_test.py CHANGES OPTIONS...`, CHANGES being a JSON object.

`under_test(skew_s=300)` is the command line up to the operator's own options. A name that `Changes` does not have is refused, in the test
already. Run as a script it has nothing of the tests on its path.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from types import SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class Changes:
    die_after_writes: int | None = None  # killed right after that write reached the API server, the answer unseen
    haste: float = 1.0  # the patience for silent watches is divided by it
    skew_s: float = 0.0  # by how much the machine's clock is wrong
    key_settle_s: float | None = None  # for how long a token that a new key signed is not shown
    otherwise_rendered: bool = False  # pods as another version renders them: the daemon has one variable more
    missing_s: float | None = None  # for how long a gateway or a replica that is silent holds up others
    key_look_s: float | None = None  # how often it looks for new keys; it reads them half as often


def under_test(**changes: Any) -> tuple[str, ...]:
    return (sys.executable, "-P", __file__, json.dumps(asdict(Changes(**changes))))


def main() -> None:
    changes = Changes(**json.loads(sys.argv.pop(1)))
    if changes.key_settle_s is not None:
        from pagoda_contracts import bearer

        _put(bearer, "SETTLE_S", changes.key_settle_s)
    if changes.missing_s is not None:
        from pagoda_operator.api import signals

        _put(signals, "MISSING_S", changes.missing_s)
    from pagoda_operator.__main__ import main as operator

    if changes.die_after_writes is not None:
        _die_after(changes.die_after_writes)
    if changes.haste != 1:
        _hasten(changes.haste)
    if changes.skew_s:
        _skew(changes.skew_s)
    if changes.otherwise_rendered:
        _render_otherwise()
    if changes.key_look_s is not None:
        _look_for_keys(changes.key_look_s)
    operator()


def _put(owner: Any, name: str, value: Any) -> None:
    assert hasattr(owner, name), f"{owner} has no {name} by now: nothing would change"
    setattr(owner, name, value)


def _die_after(most: int) -> None:
    from pagoda_operator.client.cluster import KubeCluster

    call = KubeCluster._call
    writes = itertools.count(1)

    async def last_call(self: KubeCluster, method: str, *args: Any, **options: Any) -> tuple[int, Any]:
        answer = await call(self, method, *args, **options)
        if method != "GET" and next(writes) >= most:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    _put(KubeCluster, "_call", last_call)


def _hasten(haste: float) -> None:
    import kopf
    from pagoda_kube import reflector
    from pagoda_operator.serve import monitoring, watches

    configure = watches.configure

    def hasty(settings: kopf.OperatorSettings) -> None:
        configure(settings)
        assert settings.watching.inactivity_timeout is not None
        settings.watching.inactivity_timeout /= haste

    _put(watches, "configure", hasty)
    _put(monitoring, "MAX_WATCH_AGE", monitoring.MAX_WATCH_AGE / haste)
    _put(reflector, "SILENT_S", reflector.SILENT_S / haste)


def _skew(seconds: float) -> None:
    import grpc.aio._utils
    from pagoda_operator.serve import leader, process

    true_time = time.time

    class Wrong(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = UTC) -> datetime:
            return datetime.now(tz) + timedelta(seconds=seconds)

    _put(time, "time", lambda: true_time() + seconds)
    # gRPC's Python half makes deadlines of this clock, which its C half compares with the machine's, which is right here.
    _put(grpc.aio._utils, "time", SimpleNamespace(time=true_time))
    assert leader.datetime is datetime, "it takes its time from elsewhere by now: nothing would be skewed"
    _put(leader, "datetime", Wrong)
    assert process.datetime is datetime, "it takes its time from elsewhere by now: nothing would be skewed"
    _put(process, "datetime", Wrong)


def _render_otherwise() -> None:
    from pagoda_operator.decide.render import pod

    daemon = pod._daemon

    def other(inputs: Any) -> dict[str, Any]:
        rendered = daemon(inputs)
        return rendered | {"env": [*rendered["env"], {"name": "PAGODA_OTHER_VERSION", "value": "1"}]}

    _put(pod, "_daemon", other)


def _look_for_keys(seconds: float) -> None:
    from pagoda_operator.run import keys

    _put(keys, "LOOK_EVERY_S", seconds)
    _put(keys, "READ_EVERY_S", 2 * seconds)


if __name__ == "__main__":
    main()
