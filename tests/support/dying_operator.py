"""The operator that is killed right after its n-th write reached the API server, the answer unseen. Run as a script, n in DIE_AFTER."""

import itertools
import os
import signal
from typing import Any

from pagoda_operator.__main__ import main
from pagoda_operator.cluster import KubeCluster

call = KubeCluster._call
writes = itertools.count(1)


async def last_call(self: KubeCluster, method: str, *args: Any, **options: Any) -> tuple[int, Any]:
    answer = await call(self, method, *args, **options)
    if method != "GET" and next(writes) >= int(os.environ["DIE_AFTER"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return answer


if __name__ == "__main__":
    KubeCluster._call = last_call  # type: ignore[method-assign]
    main()
