"""`pagoda validate` as a user types it: lines, paths, exit codes."""

import io
import json

import pytest
from pagoda_cli.commands import run

GOOD = """\
apiVersion: serving.pagoda.dev/v1alpha1
kind: InferenceService
metadata:
  name: tiny
spec:
  model:
    uri: pvc://models/tiny
  accelerators:
  - cpu:
      cores: 250m
      memory: 2Gi
"""


@pytest.fixture
def ask(capsys):
    def call(*arguments):
        code = run(("validate", *arguments))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return call


@pytest.fixture
def file(tmp_path):
    def write(text, name="a.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


@pytest.mark.parametrize("option", [(), ("-f",)], ids=["FILE", "-f FILE"])
def test_a_valid_file_is_said_to_be_valid(ask, file, option):
    assert ask(*option, file(GOOD)) == (0, "InferenceService/tiny: valid\n", "")


def test_files_are_given_in_both_ways_at_once_and_at_least_one(ask, file):
    assert ask(file(GOOD), "-f", file(GOOD.replace("name: tiny", "name: two"), "b.yaml"))[1] == (
        "InferenceService/tiny: valid\nInferenceService/two: valid\n"
    )
    assert ask() == (2, "", "pagoda: give at least one FILE, or - for standard input\n")


QWEN, GPU = "hf://Qwen/Qwen2-7B-Instruct", "gpu: {product: L4}"
ENTRY = "cpu:\n      cores: 250m\n      memory: 2Gi"


@pytest.mark.parametrize(
    ("changes", "line", "says"),
    [
        ({ENTRY: "gpu: {count: 2}"}, 9, "spec.accelerators[0].gpu.count: refused: gpu.count must be 1, got 2: a replica computes on one"),
        ({ENTRY: GPU, "spec:": "spec:\n  engine: {quantization: nvfp4}"}, 10, "spec.accelerators[0]: refused: engine.quantization nvfp4"),
        (
            {"pvc://models/tiny": QWEN, ENTRY: "gpu: {product: A100}", "spec:": "spec:\n  engine: {quantization: fp8}"},
            10,
            "spec.accelerators[0]: refused: fp8 weights need compute capability 8.9, this device has 8.0",
        ),
        ({"pvc://models/tiny": "hf://openai-community/gpt2"}, 7, "spec.model.uri: refused: no daemon serves this model: model_type 'gpt2'"),
        ({"pvc://models/tiny": QWEN}, 9, "spec.accelerators[0]: refused: needs "),
        ({"memory: 2Gi": "memory: 64Mi"}, 11, "spec.accelerators[0].cpu.memory: refused: container daemon takes "),
        ({"pvc://models/tiny": QWEN, ENTRY: "mig: {profile: 1g.10gb}"}, 9, "spec.accelerators[0]: refused: needs "),
        ({"pvc://models/tiny": QWEN, ENTRY: GPU, "spec:": "spec:\n  engine: {maxModelLen: 16384}"}, 10, "of maxConcurrency 64 requests at"),
        ({"spec:": "spec:\n  scaling: {max: 3}"}, 6, "spec.scaling.max: of no effect in mode Manual"),
        ({"spec:": "spec:\n  engine: {kvCache: {cpuOffload: 1Gi}}"}, 6, "spec.engine.kvCache.cpuOffload: not acted on yet"),
    ],
)
def test_what_will_be_refused_or_change_nothing_is_noted_beforehand(ask, file, changes, line, says):
    text = GOOD
    for old, new in changes.items():
        text = text.replace(old, new, 1)
    name = file(text)
    code, out, err = ask(name)
    (valid, note) = out.splitlines()
    assert (code, err, valid) == (0, "", "InferenceService/tiny: valid")
    assert note.startswith(f"note: {name}:{line}: InferenceService/tiny: spec.")
    assert says in note
    assert len(json.loads(ask(name, "--json")[1])["notes"]) == 1


QUOTA = """apiVersion: serving.pagoda.dev/v1alpha1
kind: TenantQuota
metadata: {name: team}
spec:
  subjects: {namespaces: [team]}
  devices:
    gpus: {H100: 8, H1000: 1}
"""


def test_a_product_that_the_catalogue_does_not_know_is_noted_beforehand(ask, file):
    name = file(QUOTA)
    note = f"note: {name}:7: TenantQuota/team: spec.devices.gpus.H1000: refused: the catalogue has no GPU H1000; near names are H100, "
    code, out, _ = ask(name)
    assert (code, out.splitlines()[1].startswith(note)) == (0, True)
    assert ask(file(QUOTA.replace("H1000", "L4")))[1] == "TenantQuota/team: valid\n"


@pytest.mark.parametrize(
    ("old", "new", "line", "path"),
    [
        ("250m", "0", 10, "spec.accelerators[0].cpu.cores"),
        ("pvc://models/tiny", "models", 7, "spec.model.uri"),
        ("  accelerators:", "  replica: 2\n  accelerators:", 8, "spec.replica"),
        ("      memory: 2Gi\n", "", 9, "spec.accelerators[0].cpu.memory"),
        ("kind: InferenceService", "kind: Service", 2, "kind"),
        ("v1alpha1", "v1", 1, "apiVersion"),
        ("      memory: 2Gi", "      memory: 2Gi\n      cores: 1", 12, "spec.accelerators[0].cpu.cores"),
    ],
)
def test_a_refusal_carries_the_line_and_the_path(ask, file, old, new, line, path):
    name = file(GOOD.replace(old, new))
    code, out, err = ask("-f", name, "--json")
    (found,) = json.loads(out)["refused"]
    assert (code, found["file"], found["line"], found["path"]) == (2, name, line, path)
    assert err == "pagoda: 1 of 1 objects refused\n"


def test_every_document_of_every_file_is_judged_and_others_objects_are_left_alone(ask, file):
    other = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
    two = file(f"---\n{other}---\n{GOOD}---\n{GOOD.replace('250m', 'two').replace('tiny', 'bad')}---\n", "two.yaml")
    code, out, _ = ask("-f", file(GOOD), "-f", two)
    assert code == 2
    assert out.count("InferenceService/tiny: valid") == 2
    assert f"{two}:27: InferenceService/bad: spec.accelerators[0].cpu.cores: " in out


def test_a_list_is_judged_item_by_item_with_its_lines(ask, file):
    item = json.dumps({"apiVersion": "serving.pagoda.dev/v1alpha1", "kind": "TenantQuota", "metadata": {"name": "a"}, "spec": {}})
    name = file(f"apiVersion: v1\nkind: List\nitems:\n- {item}\n")
    assert f"{name}:4: TenantQuota/a: spec.subjects: is required" in ask("-f", name)[1]


def test_a_key_that_stands_twice_in_a_list_s_item_is_refused_at_its_line(ask, file):
    item = "".join(f"  {line}\n" for line in GOOD.splitlines())
    name = file(f"apiVersion: v1\nkind: List\nitems:\n-{item[1:]}      memory: 1Gi\n".replace("      memory: 1Gi", "        memory: 1Gi"))
    assert f"{name}:15: InferenceService/tiny: spec.accelerators[0].cpu.memory: occurs twice" in ask("-f", name)[1]


def test_standard_input_is_read(ask, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(GOOD))
    assert ask("-f", "-")[:2] == (0, "InferenceService/tiny: valid\n")


@pytest.mark.parametrize(
    ("text", "says"),
    [("a: [", "no YAML"), ("", "no Pagoda object"), ("apiVersion: v1\nkind: Pod\n", "no Pagoda object"), ("? {}\n: 1\n", "no YAML")],
)
def test_what_holds_no_object_of_ours_is_one_line_on_stderr(ask, file, text, says):
    code, out, err = ask("-f", file(text))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_a_file_that_is_not_there_is_named(ask):
    code, _, err = ask("-f", "/no/such/file.yaml")
    assert (code, "/no/such/file.yaml" in err) == (2, True)


def test_dates_stay_text_as_in_kubectl(ask, file):
    text = GOOD.replace("    uri: pvc://models/tiny", "    uri: pvc://models/tiny\n    revision: 2026-01-01")
    assert ask("-f", file(text))[0] == 0
