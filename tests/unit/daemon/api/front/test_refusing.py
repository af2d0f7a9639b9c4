"""A port that cannot be had: what a person who typed `serve` sees."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest
from pagoda_daemon.api.front import front
from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.health.replica import ProbeServer
from support.servers.local_front import local_config, local_front


@pytest.mark.parametrize(("number", "hint"), [(errno.EADDRINUSE, "; --port takes another"), (errno.EACCES, "")])
def test_a_port_that_another_program_has_names_the_flag(number, hint):
    with pytest.raises(ConfigRejected) as caught, front._refusing("listen.http: cannot listen", "; --port takes another"):
        raise OSError(number, "why")
    assert str(caught.value) == f"listen.http: cannot listen: [Errno {number}] why{hint}"


@pytest.mark.parametrize("name", ["http", "grpc", "probes"])
async def test_each_port_in_use_is_refused_by_its_field(tmp_path: Path, name: str):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = local_config(tmp_path)
        listen = config.listen.model_copy(update={name: taken.getsockname()[1]})
        with pytest.raises(ConfigRejected, match=f"^listen.{name}: cannot listen on 127.0.0.1:{listen.model_dump()[name]}"):
            async with local_front(config.model_copy(update={"listen": listen}), ProbeServer):
                raise AssertionError("it listens")
