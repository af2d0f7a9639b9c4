"""pvc:// copied from a mounted claim."""

import os

import pytest
from pagoda_fetch.core.address import parse
from pagoda_fetch.core.errors import NotFound, Refused
from pagoda_fetch.sources.claim import Claim
from support.clients.fetching import LARGE, TAKEN, Fetcher, contents, model_files

FILES = model_files(300_000)


@pytest.fixture
def fetcher(tmp_path):
    made = Fetcher(tmp_path)
    folder = made.claims / "models/llama"
    folder.mkdir(parents=True)
    for name, body in FILES.items():
        (folder / name).write_bytes(body)
    return made


async def test_a_claim_s_model_is_copied(fetcher):
    assert contents(await fetcher.fetch("pvc://models/llama")) == {name: FILES[name] for name in TAKEN}


async def test_links_within_the_claim_are_followed_as_a_hub_s_cache_has_them(fetcher):
    blobs = fetcher.claims / "models/blobs"
    blobs.mkdir()
    weights = fetcher.claims / "models/llama/model-00001-of-00002.safetensors"
    weights.rename(blobs / "abc")
    weights.symlink_to("../blobs/abc")
    place = await fetcher.fetch("pvc://models/llama")
    assert contents(place) == {name: FILES[name] for name in TAKEN}
    assert not (place / TAKEN[1]).is_symlink()


async def test_a_link_that_leaves_the_claim_refuses_it(fetcher, tmp_path):
    (tmp_path / "secret.json").write_text("{}")
    (fetcher.claims / "models/llama/extra.json").symlink_to(tmp_path / "secret.json")
    with pytest.raises(Refused, match="link that leaves the claim"):
        await fetcher.fetch("pvc://models/llama")


@pytest.mark.parametrize("other", ["models-of-others", "modelsx", "other"])
async def test_a_link_into_another_claim_refuses_it_whatever_that_claim_is_called(fetcher, other):
    (fetcher.claims / other).mkdir()
    (fetcher.claims / other / "secret.json").write_text("{}")
    (fetcher.claims / "models/llama/extra.json").symlink_to(f"../../{other}/secret.json")
    with pytest.raises(Refused, match="link that leaves the claim"):
        await fetcher.fetch("pvc://models/llama")
    assert fetcher.published() == []


async def test_a_file_that_is_edited_in_place_makes_another_listing(fetcher):
    """Same name, size and inode: what was copied of the old bytes is not continued with new ones."""
    weights = fetcher.claims / "models/llama" / LARGE
    os.utime(weights, ns=(1, 1))
    source = Claim(parse("pvc://models/llama"), fetcher.claims, fetcher.limits)
    before = await source.resolve()
    assert (await source.resolve()).key == before.key
    os.utime(weights, ns=(1, 2))
    assert (await source.resolve()).key != before.key


async def test_a_claim_that_is_not_mounted_is_named(fetcher):
    with pytest.raises(NotFound, match="not mounted here"):
        await fetcher.fetch("pvc://other/llama")
    with pytest.raises(NotFound, match="no such folder"):
        await fetcher.fetch("pvc://models/qwen")
