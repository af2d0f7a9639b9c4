"""hf:// against a hub on loopback: what is taken, what is verified, what a fault costs."""

import asyncio
import hashlib
import subprocess

import pytest
from pagoda_fetch.core.errors import Forbidden, Mismatch, NotFound, Refused, Unreachable
from support.clients.fetching import LARGE, TAKEN, Fetcher, contents, model_files
from support.servers.fetch_hub import COMMIT, Fault, running_hub


@pytest.fixture
def files():
    return model_files()


@pytest.fixture
def hub(files):
    with running_hub(files) as running:
        yield running


@pytest.fixture
def fetcher(tmp_path, hub):
    return Fetcher(tmp_path, hub.url)


async def test_a_model_arrives_whole_without_code_and_pickles(fetcher, files):
    place = await fetcher.fetch()
    assert contents(place) == {name: files[name] for name in TAKEN}
    assert place.name == fetcher.published()[0]
    assert fetcher.staged() == {}
    assert [progress.phase for progress in fetcher.seen][:1] == ["resolving"]
    assert fetcher.seen[-1].done == fetcher.seen[-1].total == sum(len(files[name]) for name in TAKEN)


async def test_a_mirror_below_a_path_that_lists_names_only_is_asked_for_the_rest(tmp_path, hub, files):
    """It sends no commit. Its tags of small files are no names of git."""
    hub.described, hub.prefix = False, "/artifactory/hf"
    hub.faults[LARGE] = Fault(flip_at=9)
    place = await Fetcher(tmp_path, f"{hub.url}{hub.prefix}/").fetch()
    assert contents(place) == {name: files[name] for name in TAKEN}
    assert hub.sent[LARGE] == 2 * len(files[LARGE]), "the tag of a large file is its SHA-256, so the flipped bit is found"
    assert not [path for path, _ in hub.asked if "evil" in path or "pytorch" in path]


def coreutils(place):
    argv = ["sh", "-c", "LC_ALL=C sha256sum * | sha256sum"]
    return subprocess.run(argv, cwd=place, capture_output=True, text=True, check=True).stdout.split()[0]


async def test_the_digest_is_what_coreutils_say_of_the_folder(fetcher):
    place = await fetcher.fetch()
    said = await asyncio.to_thread(coreutils, place)
    assert place.name == f"sha256-{said}"


async def test_all_files_are_asked_for_by_the_commit_that_the_listing_named(fetcher, hub):
    await fetcher.fetch(revision="main")
    assert {path.split("/")[4] for path, _ in hub.asked if "/resolve/" in path} == {COMMIT}


async def test_what_is_there_is_not_fetched_again(fetcher, hub, files):
    first = await fetcher.fetch()
    sent = hub.sent.copy()
    assert await fetcher.fetch() == first
    assert hub.sent == sent


async def test_a_pinned_commit_that_is_there_needs_no_hub(fetcher, hub):
    first = await fetcher.fetch(revision=COMMIT)
    hub.status = 500
    assert await fetcher.fetch(revision=COMMIT) == first


async def test_a_branch_that_moved_is_fetched_anew(fetcher, hub):
    first = await fetcher.fetch()
    hub.commit, hub.files["config.json"] = "b" * 40, b'{"model_type": "qwen2"}'
    second = await fetcher.fetch()
    assert second != first
    assert (second / "config.json").read_bytes() == hub.files["config.json"]


async def test_a_cut_goes_on_where_it_was_cut(fetcher, hub, files):
    hub.faults[LARGE] = Fault(cut_after=1_500_000)
    place = await fetcher.fetch()
    assert contents(place)[LARGE] == files[LARGE]
    # What sockets and a batch held at the cut is the only thing sent twice: up to 230 kB were seen; from the start it would be 1,500.
    assert len(files[LARGE]) <= hub.sent[LARGE] < len(files[LARGE]) + 1_000_000
    assert [headers.get("range", "") for headers in hub.asked_for(f"/cdn/{LARGE}")][1].startswith("bytes=1")


async def test_a_file_that_is_whole_is_not_asked_for_again_after_a_restart(tmp_path, hub, files):
    hub.faults[TAKEN[2]] = Fault(status=503)
    with pytest.raises(Unreachable):
        await Fetcher(tmp_path, hub.url, attempts=1, parallel=1).fetch()
    assert hub.sent[LARGE] == len(files[LARGE])
    asked = len(hub.asked_for(f"/cdn/{LARGE}"))
    again = Fetcher(tmp_path, hub.url)
    assert contents(await again.fetch()) == {name: files[name] for name in TAKEN}
    assert (hub.sent[LARGE], len(hub.asked_for(f"/cdn/{LARGE}"))) == (len(files[LARGE]), asked)
    assert again.seen[-1].done == again.seen[-1].total


async def test_a_kept_part_that_is_wrong_is_fetched_anew_and_counted_once(tmp_path, hub, files):
    """A node that crashes may leave a hole where bytes were written."""
    hub.faults[LARGE] = Fault(cut_after=2_500_000)
    with pytest.raises(Unreachable):
        await Fetcher(tmp_path, hub.url, attempts=1, parallel=1).fetch()
    (partial,) = tmp_path.glob(f"models/.staging/*/{LARGE}.partial")
    partial.write_bytes(bytes(4096) + partial.read_bytes()[4096:])
    again = Fetcher(tmp_path, hub.url)
    assert contents(await again.fetch())[LARGE] == files[LARGE]
    assert again.seen[-1].done == again.seen[-1].total == sum(len(files[name]) for name in TAKEN)


async def test_a_server_that_ignores_ranges_is_read_up_to_the_offset(fetcher, hub, files):
    hub.ranges = False
    hub.faults[LARGE] = Fault(cut_after=1_500_000)
    assert contents(await fetcher.fetch())[LARGE] == files[LARGE]


@pytest.mark.parametrize("name", [LARGE, "config.json"])
async def test_what_stays_wrong_is_refused_and_nothing_is_left(fetcher, hub, name):
    hub.faults[name] = Fault(flip_at=5, times=99)
    with pytest.raises(Mismatch, match=name):
        await fetcher.fetch()
    assert (fetcher.published(), fetcher.staged()) == ([], {})


async def test_another_digest_than_asked_for_is_refused_and_nothing_is_left(fetcher):
    with pytest.raises(Mismatch, match="asked for is sha256:0000"):
        await fetcher.fetch(digest=f"sha256:{'0' * 64}")
    assert (fetcher.published(), fetcher.staged()) == ([], {})


async def test_the_digest_that_was_asked_for_is_taken_without_asking_anybody(fetcher, hub):
    place = await fetcher.fetch()
    hub.status, asked = 500, len(hub.asked)
    assert await fetcher.fetch(uri="hf://org/elsewhere", digest=place.name.replace("-", ":")) == place
    assert len(hub.asked) == asked


async def test_a_download_that_progresses_between_cuts_is_not_given_up(tmp_path, hub, files):
    """Longer than any window in all, never a window without progress."""
    hub.faults[LARGE] = Fault(cut_after=len(files[LARGE]) // 8, times=7)
    fetcher = Fetcher(tmp_path, hub.url, attempts=2)
    assert contents(await fetcher.fetch())[LARGE] == files[LARGE]


@pytest.mark.parametrize(
    ("status", "error"), [(403, Forbidden), (404, NotFound), (503, Unreachable), (429, Unreachable)], ids=["403", "404", "503", "429"]
)
async def test_what_the_hub_refuses_is_said(fetcher, hub, status, error):
    hub.status = status
    with pytest.raises(error):
        await fetcher.fetch()


async def test_a_busy_hub_is_asked_again(fetcher, hub, files):
    hub.faults[LARGE] = Fault(status=503, times=2)
    assert contents(await fetcher.fetch())[LARGE] == files[LARGE]


async def test_a_revision_that_is_not_there_is_named(fetcher):
    with pytest.raises(NotFound, match="revision v9"):
        await fetcher.fetch(revision="v9")


async def test_a_private_model_needs_its_credential(tmp_path, files):
    with running_hub(files, token="s3cret") as hub:
        fetcher = Fetcher(tmp_path, hub.url)
        with pytest.raises(Forbidden, match="credential"):
            await fetcher.fetch()
        name = fetcher.credential("hub", token="s3cret\n")
        assert contents(await fetcher.fetch(credential=name))[LARGE] == files[LARGE]


async def test_the_token_stays_with_the_hub(tmp_path, files):
    """Large files come from another host: the signed link is all that it is shown."""
    with running_hub(files) as store, running_hub(files, token="s3cret") as hub:
        hub.moved[LARGE] = f"{store.url}/cdn/{LARGE}?signature=secret"
        fetcher = Fetcher(tmp_path, hub.url)
        await fetcher.fetch(credential=fetcher.credential("hub", token="s3cret"))
        assert len(store.asked) == 1
        assert "authorization" not in store.asked[0][1]
        assert "authorization" in hub.asked_for(f"/org/model/resolve/{COMMIT}/config.json")[0]


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "http://user:pass@127.0.0.1/x", "gopher://x"])
async def test_a_redirect_that_leaves_http_is_refused(fetcher, hub, target):
    hub.moved["config.json"] = target
    with pytest.raises(Refused, match="redirects to"):
        await fetcher.fetch()


async def test_a_loop_of_redirects_ends(fetcher, hub):
    hub.moved["config.json"] = f"/org/model/resolve/{COMMIT}/config.json"
    with pytest.raises(Refused, match="more than 5 redirects"):
        await fetcher.fetch()


@pytest.mark.parametrize("name", ["../../etc/passwd.json", "/etc/passwd.json", "a/../b.json", "a\\b.json", "a\x00b.json", "./x.json"])
async def test_a_name_that_leaves_its_folder_refuses_the_whole_source(fetcher, hub, name, tmp_path):
    hub.files[name] = b"{}"
    with pytest.raises(Refused, match="names must not have"):
        await fetcher.fetch()
    assert fetcher.published() == []


async def test_only_the_weights_that_a_replica_reads_are_taken(fetcher, hub):
    hub.files["consolidated.safetensors"] = b"x" * 1000
    hub.files["onnx/model.safetensors"] = b"x" * 1000
    assert sorted(contents(await fetcher.fetch())) == sorted(TAKEN)


async def test_a_folder_of_a_repository_is_a_model_too(fetcher, hub, files):
    hub.files.update({f"sub/{name}": body for name, body in model_files(200_000, seed=8).items()})
    place = await fetcher.fetch("hf://org/model/sub")
    assert (place / LARGE).read_bytes() == hub.files[f"sub/{LARGE}"]


async def test_pickled_weights_alone_are_no_model(fetcher, hub):
    for name in TAKEN[1:3]:
        del hub.files[name]
    with pytest.raises(Refused, match="pickled weights are not taken"):
        await fetcher.fetch()


async def test_more_than_the_cap_is_refused_before_a_byte_moves(tmp_path, hub):
    fetcher = Fetcher(tmp_path, hub.url, max_bytes=1_000_000)
    with pytest.raises(Refused, match="at most 976"):
        await fetcher.fetch()
    assert not hub.sent


async def test_what_an_older_listing_left_is_removed(fetcher, hub):
    hub.faults[LARGE] = Fault(status=503, times=99)
    with pytest.raises(Unreachable):
        await fetcher.fetch()
    (old,) = fetcher.root.glob(".staging/*")
    hub.commit, hub.faults = "b" * 40, {}
    await fetcher.fetch()
    assert not old.exists()


@pytest.mark.parametrize("rest", [None, 0, 1, -1], ids=["removed", "empty", "one byte left", "one byte lost"])
@pytest.mark.parametrize("revision", ["", COMMIT], ids=["branch", "commit"])
async def test_a_model_folder_with_missing_files_is_completed(fetcher, files, rest, revision):
    place = await fetcher.fetch(revision=revision)
    (place / LARGE).unlink()
    if rest is not None:
        (place / LARGE).write_bytes(files[LARGE][:rest])
    assert await fetcher.fetch(revision=revision) == place
    assert hashlib.sha256((place / LARGE).read_bytes()).digest() == hashlib.sha256(files[LARGE]).digest()
