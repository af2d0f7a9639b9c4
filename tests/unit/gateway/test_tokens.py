"""The gateway shows who it is, and asks those who call it the same: tokens, their renewal, and keys that rotate under load."""

import asyncio
import json
import time

import aiohttp
import pytest
from pagoda_contracts.names import ROLE_GATEWAY, ROLE_OPERATOR
from pagoda_gateway.callers import Callers, NotLetIn
from pagoda_gateway.tokens import OwnToken, metadata
from support.kube.issuer import STRANGER, SUBJECTS, Issuer, SigningKey
from support.servers.gateway_process import start_gateway, write_fleet
from support.servers.replica import NAME, replica_config, start_replica


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
    assert "own token unreadable" in capsys.readouterr().out


def test_a_gateway_without_its_token_does_not_start(tmp_path):
    with pytest.raises(FileNotFoundError):
        OwnToken(tmp_path / "token")


@pytest.fixture
def callers(issuer):
    return Callers(issuer.file, {SUBJECTS[ROLE_OPERATOR]: ROLE_OPERATOR})


def shown(token):
    return (("user-agent", "x"), ("authorization", f"Bearer {token}"))


def test_a_caller_has_his_subject_s_role(callers, issuer):
    assert callers.role(shown(issuer.token(ROLE_OPERATOR))) == ROLE_OPERATOR


def test_callers_of_ours_whose_role_is_not_named_here_are_known_and_not_let_in(callers, issuer):
    with pytest.raises(NotLetIn, match="may not call this") as caught:
        callers.role(shown(issuer.token(ROLE_GATEWAY)))
    assert caught.value.known


WRONG = {
    "nothing": lambda _: (),
    "an empty one": lambda _: shown(""),
    "binary": lambda _: (("authorization", b"Bearer x"),),
    "another scheme": lambda issuer: (("authorization", f"Basic {issuer.token(ROLE_OPERATOR)}"),),
    "no token": lambda _: shown("sk-123"),
    "too long": lambda _: shown("a" * 10_000),
    "another key's": lambda _: shown(SigningKey("one").token(SUBJECTS[ROLE_OPERATOR])),
    "for another audience": lambda issuer: shown(issuer.token(ROLE_OPERATOR, aud=["api"])),
    "expired": lambda issuer: shown(issuer.token(ROLE_OPERATOR, exp=1)),
    "a stranger's": lambda issuer: shown(issuer.keys[0].token(STRANGER)),
}


@pytest.mark.parametrize("made", WRONG.values(), ids=WRONG)
def test_who_proves_nothing_is_not_let_in_and_his_token_is_not_repeated(callers, issuer, made):
    sent = made(issuer)
    with pytest.raises(NotLetIn) as caught:
        callers.role(sent)
    assert not any(str(value) in str(caught.value) for _, value in sent if len(str(value)) > 20)


def test_keys_are_followed_as_they_rotate_and_nobody_is_let_in_without_them(callers, issuer):
    old = issuer.token(ROLE_OPERATOR)
    issuer.keys = [SigningKey("two")]
    issuer.publish()
    assert callers.role(shown(issuer.token(ROLE_OPERATOR))) == ROLE_OPERATOR
    with pytest.raises(NotLetIn, match="none of the known keys"):
        callers.role(shown(old))
    issuer.file.unlink()
    with pytest.raises(NotLetIn, match="cannot be read"):
        callers.role(shown(issuer.token(ROLE_OPERATOR)))


async def ask(client, gateway, tokens=8):
    body = {"model": NAME, "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
    async with client.post(f"{gateway.url}/v1/completions", json=body, headers={"authorization": "Bearer sk-client"}) as answer:
        return answer.status, json.loads(await answer.read())


@pytest.mark.deep
async def test_keys_rotate_under_load_without_one_failure(tmp_path, issuer):
    """A real replica that asks for tokens, a real gateway that shows its own. Twice the cluster goes over to a new key: published beside
    the old one, then signing, then alone. Requests go on all the while, and a client's own key is none of the replica's business."""
    token, fleet = tmp_path / "token", tmp_path / "fleet.json"
    project(token, issuer.token(ROLE_GATEWAY))
    with start_replica(replica_config(tmp_path, auth=issuer.config())) as replica:
        endpoint = {"http": replica.http, "grpc": replica.grpc}
        write_fleet(fleet, [{"name": "ns/s", "served_names": [NAME], "endpoints": [endpoint]}])
        with start_gateway("--fleet", str(fleet), "--token", str(token), "--hold-timeout", "30s") as gateway:
            async with aiohttp.ClientSession() as client:
                done, answers = asyncio.Event(), [[] for _ in range(4)]

                async def load(mine):
                    while not done.is_set():
                        mine.append(await ask(client, gateway))
                        await asyncio.sleep(0.02)

                async def under_load(seconds):
                    """Both processes look at their files once a second; then no request is under way that began before."""
                    await asyncio.sleep(seconds)
                    counts = [len(mine) for mine in answers]
                    while any(len(mine) < count + 3 for mine, count in zip(answers, counts, strict=True)):
                        await asyncio.sleep(0.01)

                loads = [asyncio.create_task(load(mine)) for mine in answers]
                for number in range(2):
                    project(
                        token, issuer.token(ROLE_GATEWAY, exp=int(time.time()) + 63)
                    )  # in its last minute soon: nothing is held back then
                    issuer.keys.append(SigningKey(f"rotated-{number}"))
                    issuer.publish()
                    await under_load(1.2)
                    project(token, issuer.token(ROLE_GATEWAY))
                    await under_load(4)
                    issuer.keys = issuer.keys[-1:]
                    issuer.publish()
                    await under_load(1.2)
                done.set()
                await asyncio.gather(*loads)
                assert {status for mine in answers for status, _ in mine} == {200}
                # Without a token nobody gets in: the same request, straight to the replica.
                async with client.post(f"http://{replica.http}/v1/completions", json={"model": NAME, "prompt": "x"}) as refused:
                    assert refused.status == 401


@pytest.mark.deep
async def test_a_replica_that_does_not_let_the_gateway_in_is_not_the_client_s_fault(tmp_path, issuer):
    """Its state is not heard either: requests wait for one that does, and the client is told to come back, never that his key is wrong."""
    token, fleet = tmp_path / "token", tmp_path / "fleet.json"
    project(token, issuer.keys[0].token(STRANGER))
    with start_replica(replica_config(tmp_path, auth=issuer.config())) as replica:
        endpoint = {"http": replica.http, "grpc": replica.grpc}
        write_fleet(fleet, [{"name": "ns/s", "served_names": [NAME], "endpoints": [endpoint]}])
        with start_gateway("--fleet", str(fleet), "--token", str(token), "--hold-timeout", "1s") as gateway:
            async with aiohttp.ClientSession() as client:
                status, body = await ask(client, gateway)
                assert (status, body["error"]["code"]) == (503, "no_ready_endpoint")
