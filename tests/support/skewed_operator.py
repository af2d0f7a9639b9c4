"""The operator on a machine whose clock is wrong by SKEW_S seconds. Run as a script. Its own clock counts, as behind a proxy that drops the
answers' Date, unless DATES is "kept": then it is to know the API server's time.
"""

import os
import time
from datetime import UTC, datetime, timedelta, tzinfo
from types import SimpleNamespace

import grpc.aio._utils
from pagoda_operator import leader
from pagoda_operator.__main__ import main
from pagoda_operator.server_time import ServerTime

SKEW = float(os.environ["SKEW_S"])
true_time = time.time


class Wrong(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = UTC) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(seconds=SKEW)


if __name__ == "__main__":
    time.time = lambda: true_time() + SKEW
    # gRPC's Python half makes deadlines of this clock, which its C half compares with the machine's, which is right here.
    grpc.aio._utils.time = SimpleNamespace(time=true_time)  # type: ignore[attr-defined]
    assert leader.datetime is datetime, "it takes its time from elsewhere by now: nothing would be skewed"  # type: ignore[attr-defined]
    leader.datetime = Wrong  # type: ignore[attr-defined, misc]
    if os.environ.get("DATES") != "kept":
        ServerTime.told = lambda *_: None  # type: ignore[method-assign]
    main()
