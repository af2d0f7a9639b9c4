"""Layers as values: what a media type means, which files are there after all layers, and where among them the model is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_fetch.core.errors import Mismatch, Refused, Unsupported
from pagoda_fetch.core.layers import Contents, Part, as_file, clean, hides, listed, model, root_of, visible, wanted, whiteout
from pagoda_fetch.core.limits import Limits
from pagoda_fetch.core.listing import Layer
from pagoda_fetch.core.tar import Entry
from support.clients.archives import IMAGE, IMAGE_CONFIG, KIT_CONFIG

ONE = f"sha256:{'1' * 64}"
TWO = f"sha256:{'2' * 64}"
PACK_CONFIG = "application/vnd.cncf.model.config.v1+json"


def layer(media, digest=ONE, **annotations):
    return {"mediaType": media, "digest": digest, "size": 1000, "annotations": annotations}


def forms(*media, config="application/vnd.oci.empty.v1+json"):
    layers = [layer(word) for word in media]
    found = listed({"config": {"mediaType": config}, "layers": layers}, {"rootfs": {}}, Limits(), "sha256:m")
    return found and [file.layer for file in found.files]


MEDIA = {
    "application/vnd.oci.image.layer.v1.tar": "tar",
    "application/vnd.oci.image.layer.v1.tar+gzip": "gzip",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
    "application/vnd.docker.image.rootfs.diff.tar": "tar",
    "application/vnd.kitops.modelkit.model.v1.tar": "tar",
    "application/vnd.kitops.modelkit.modelpart.v1.tar+gzip": "gzip",
    "application/vnd.cncf.model.weight.v1.tar": "tar",
    "application/vnd.cncf.model.weight.config.v1.tar+gzip": "gzip",
}


@pytest.mark.parametrize(("media", "form"), MEDIA.items(), ids=MEDIA)
def test_a_media_type_says_how_a_layer_is_packed(media, form):
    assert forms(media) == [Layer(form, unpacked=1000)]
    assert forms(media, config=IMAGE_CONFIG) == [Layer(form, within="models", unpacked=1000)]


TITLE = {"org.opencontainers.image.title": "config.json"}
FOLDER = TITLE | {"io.deis.oras.content.unpack": "true", "io.deis.oras.content.digest": TWO}


@pytest.mark.parametrize("config", ["x/y", IMAGE_CONFIG], ids=["empty", "as old versions of oras made it"])
def test_files_of_oras_have_the_type_of_a_layer_and_are_files(config):
    file = layer("application/vnd.oci.image.layer.v1.tar", **TITLE)
    manifest = {"config": {"mediaType": config}, "layers": [file]}
    assert (listed(manifest, {}, Limits(), ""), as_file(file).name) == (None, "config.json")
    manifest["layers"].append(layer(IMAGE, **FOLDER))
    found = listed(manifest, {}, Limits(), "")
    assert [file.layer for file in found.files] == [Layer("raw", "config.json"), Layer("gzip", "config.json", "", TWO, 1000)]
    assert [file.layer.form for file in listed(manifest, {"rootfs": {}}, Limits(), "").files] == (
        ["tar", "gzip"] if config == IMAGE_CONFIG else ["raw", "gzip"]
    )


@pytest.mark.parametrize("media", ["application/x-tar", "application/vnd.x.tar+gzip", "application/vnd.kitops.modelkit.model.v1.raw+gzip"])
def test_an_archive_of_an_unknown_type_is_named(media):
    with pytest.raises(Unsupported, match="is not unpacked"):
        as_file(layer(media, **TITLE))


@pytest.mark.parametrize("kind", ["dataset", "code", "docs", "doc"])
def test_what_lies_beside_a_model_is_not_fetched(kind):
    beside = layer(f"application/vnd.kitops.modelkit.{kind}.v1.tar+zstd", **{"org.opencontainers.image.title": "data"})
    found = listed({"layers": [layer(IMAGE), beside]}, {}, Limits(), "")
    assert len(found.files) == 1
    assert listed({"layers": [beside]}, {}, Limits(), "") is None


@pytest.mark.parametrize("media", [IMAGE.replace("gzip", "zstd"), "application/vnd.kitops.modelkit.model.v1.tar+zstd"])
def test_a_compression_that_is_not_unpacked_is_named(media):
    with pytest.raises(Unsupported, match="zstd is not unpacked; push it with gzip"):
        forms(media)


@pytest.mark.parametrize(
    ("config", "body"),
    [
        (IMAGE_CONFIG, {"rootfs": {"diff_ids": [TWO, TWO]}}),
        (PACK_CONFIG, {"modelfs": {"diffIds": [TWO, TWO]}}),
        (KIT_CONFIG, {"model": {"digest": ONE, "diffId": TWO, "parts": [{"digest": TWO, "diffId": TWO}]}}),
    ],
)
def test_a_config_promises_what_layers_are_before_their_compression(config, body):
    manifest = {"config": {"mediaType": config}, "layers": [layer(IMAGE), layer("application/vnd.oci.image.layer.v1.tar", TWO)]}
    found = listed(manifest, body, Limits(), "")
    assert [file.layer.diff_id for file in found.files] == [TWO, TWO]
    manifest["layers"][1]["digest"] = ONE
    with pytest.raises(Mismatch, match="the config promises"):
        listed(manifest, body, Limits(), "")


@pytest.mark.parametrize("config", [{"rootfs": None}, {"rootfs": {"diff_ids": [ONE]}}, {"model": {"parts": [3]}}, {"model": []}])
def test_a_config_that_promises_nothing_is_no_fault(config):
    found = listed({"layers": [layer(IMAGE), layer(IMAGE, TWO)]}, config, Limits(), "")
    assert {file.layer.diff_id for file in found.files} == {""}


def test_a_file_below_very_many_folders_is_not_a_models():
    paths = ["models/" * count + "config.json" for count in (3, 40)]
    assert [wanted(path, "models", Entry(path, "file", 1)) for path in paths] == [True, False]


def test_a_listing_counts_what_is_announced_and_is_bounded():
    size = {"org.cncf.model.file.metadata+json": '{"size": 5000}', "org.cncf.model.filepath": "model.safetensors"}
    absurd = {"org.cncf.model.file.metadata+json": '{"size": 1e99}'}
    found = listed({"layers": [layer(IMAGE, **size), layer(IMAGE, **absurd)]}, {}, Limits(), "")
    assert (found.size, found.unpacked, found.digest) == (2000, 6000, "")
    with pytest.raises(Refused, match="2 layers of"):
        listed({"layers": [layer(IMAGE)] * 2}, {}, Limits(max_bytes=1999), "")


@pytest.mark.parametrize("name", ["../a", "a/../b", "/../etc/passwd", "a/..", "a\0b"])
def test_a_name_that_leaves_the_archive_is_refused(name):
    with pytest.raises(Refused, match="names must not have"):
        clean(name)


def test_a_name_is_clean():
    assert [clean(name) for name in ("./models//a.json", "models/", ".", "", "..a/b", "/nix/x")] == [
        "models/a.json",
        "models",
        "",
        "",
        "..a/b",
        "nix/x",
    ]


def part(path, text="x"):
    return Part(path, 1, text, "")


PATHS = st.sampled_from([f"{folder}{name}" for folder in ("", "a/", "a/b/", "c/", "x/") for name in ("x", "y")])
STEPS = st.lists(
    st.tuples(st.frozensets(PATHS, max_size=4), st.frozensets(st.sampled_from(["x", "a", "a/", "a/b/", "c/x", "/"]), max_size=2))
)


@pytest.mark.deep
@given(STEPS)
def test_the_last_layer_wins_and_what_is_hidden_is_gone(steps):
    """Against layers that are applied one after the other."""
    layers = [Contents(tuple(part(path, str(n)) for path in paths), hidden) for n, (paths, hidden) in enumerate(steps)]
    tree = {}
    for n, (paths, hidden) in enumerate(steps):
        gone = [p for p in tree if any(p == h or p.startswith(h if h.endswith("/") else f"{h}/") or h == "/" for h in hidden | paths)]
        tree = {path: text for path, text in tree.items() if path not in gone} | dict.fromkeys(paths, str(n))
    assert {path: found.sha256 for path, found in visible(layers).items()} == tree


WHITEOUTS = {
    "models/.wh.a.json": "models/a.json",
    ".wh.models": "models",
    "models/.wh..wh..opq": "models/",
    ".wh..wh..opq": "/",
    "usr/.wh.bin": "",
    "models/.wh..wh.aufs": "",
    "models/.wh.": "",
    ".wh.": "",
    "models/.wh..": "",
    "models/.wh...": "",
    "models/a.json": "",
}


@pytest.mark.parametrize(("path", "hidden"), WHITEOUTS.items(), ids=WHITEOUTS)
def test_a_whiteout_hides_what_it_names(path, hidden):
    assert whiteout(path, "models") == hidden


@pytest.mark.parametrize(
    ("path", "kind", "hidden"),
    [
        ("models/m", "other", "models/m"),
        ("models", "other", "models"),
        ("models/m", "folder", ""),
        ("models/a.json", "file", ""),
        ("usr/m", "other", ""),
        ("models/.wh.m", "file", "models/m"),
    ],
)
def test_a_link_hides_the_folder_whose_place_it_takes(path, kind, hidden):
    assert hides(path, "models", Entry(path, kind, 0)) == hidden


def test_the_model_is_in_the_highest_folder_with_a_config():
    paths = ["m/1_Pooling/config.json", "m/config.json", "m/model.safetensors", "m/tokenizer.json", "readme.json"]
    assert sorted(model([Contents(tuple(map(part, paths)))], Limits())) == ["config.json", "model.safetensors", "tokenizer.json"]
    with pytest.raises(Refused, match="one artifact must hold one model"):
        root_of(["a/config.json", "b/config.json"])
    with pytest.raises(Refused, match=r"no model there: .*; found m/model\.safetensors"):
        model([Contents((part("m/model.safetensors"),))], Limits())
    with pytest.raises(Refused, match="at most 2 of"):
        model([Contents(tuple(map(part, paths)))], Limits(max_files=2))
