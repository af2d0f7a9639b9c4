"""The gateway's own token: which one it shows while its file is renewed, broken or missing."""

import pytest
from pagoda_contracts.names import ROLE_GATEWAY
from pagoda_gateway.watch.own_token import OwnToken, metadata
from support.kube.issuer import Issuer


@pytest.fixture
def issuer(tmp_path):
    return Issuer(tmp_path)


def project(path, token):
    """As kubelet does: swapped, not rewritten."""
    path.with_suffix(".new").write_text(token)
    path.with_suffix(".new").replace(path)


def test_the_file_s_token_is_shown_and_a_renewed_one_after_it(tmp_path, issuer):
    now, file = 1000.0, tmp_path / "token"
    tokens = [issuer.token(ROLE_GATEWAY, exp=5000 + number) for number in range(2)]
    project(file, tokens[0])
    own = OwnToken(file, lambda: now)
    assert own.header() == f"Bearer {tokens[0]}"
    project(file, tokens[1])
    assert own.header() == f"Bearer {tokens[0]}"  # looked at a moment ago
    now += 1
    assert metadata(own) == (("authorization", f"Bearer {tokens[1]}"),)


def test_a_renewed_token_is_shown_though_somebody_has_set_the_clock_back(tmp_path, issuer):
    now, file = 1000.0, tmp_path / "token"
    tokens = [issuer.token(ROLE_GATEWAY, exp=5000 + number) for number in range(2)]
    project(file, tokens[0])
    own = OwnToken(file, lambda: now)
    project(file, tokens[1])
    now -= 600
    assert own.header() == f"Bearer {tokens[1]}"


@pytest.mark.parametrize("broken", ["", "no token", None])
def test_a_file_that_broke_leaves_the_last_token_in_use(tmp_path, issuer, broken, capsys):
    now, file = 1000.0, tmp_path / "token"
    project(file, issuer.token(ROLE_GATEWAY, exp=5000))
    own = OwnToken(file, lambda: now)
    good = own.header()
    if broken is None:
        file.unlink()
    else:
        project(file, broken)
    now += 2
    assert own.header() == good
    assert "own token cannot be read" in capsys.readouterr().out


def test_a_gateway_without_its_token_does_not_start(tmp_path):
    with pytest.raises(FileNotFoundError):
        OwnToken(tmp_path / "token")
