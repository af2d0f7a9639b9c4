"""A port that cannot be had: what a person who typed `serve` is told."""

from __future__ import annotations

import errno

import pytest
from pagoda_daemon.api.front import front
from pagoda_daemon.nouns.errors import ConfigRejected


@pytest.mark.parametrize(("number", "hint"), [(errno.EADDRINUSE, "; --port takes another"), (errno.EACCES, "")])
def test_a_port_that_another_program_has_names_the_flag(number, hint):
    with pytest.raises(ConfigRejected) as caught, front._refusing("listen.http: cannot listen", "; --port takes another"):
        raise OSError(number, "why")
    assert str(caught.value) == f"listen.http: cannot listen: [Errno {number}] why{hint}"
