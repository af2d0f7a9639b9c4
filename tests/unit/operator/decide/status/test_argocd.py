"""Argo CD's health of our kinds: the script that the chart ships, run by the Lua that Argo CD speaks, on every state of a service."""

from pathlib import Path

import pytest
import yaml
from lupa.lua51 import LuaRuntime
from pagoda_contracts.crds.crdgen import KINDS
from pagoda_contracts.names import GROUP
from pagoda_operator.decide.status.profile import parse_profile, profile_status
from support.harness.status_states import STATES
from support.judges.kstatus import kstatus
from support.kube.fake_api import profile_body

FOLDER = Path(__file__).parents[5] / "charts/pagoda/argocd"
SCRIPT = (FOLDER / "health.lua").read_text()
HEALTH = {"Current": "Healthy", "InProgress": "Progressing", "Failed": "Degraded"}


def health(body):
    """What Argo CD would show: the script with `obj`, nothing else of the machine within its reach."""
    lua = LuaRuntime(register_eval=False, register_builtins=False, unpack_returned_tuples=True)
    for name in ("os", "io", "package", "require", "dofile", "loadfile", "python"):
        lua.globals()[name] = None
    lua.globals().obj = tables(lua, body)
    found = lua.execute(SCRIPT)
    return found["status"], found["message"]


def tables(lua, value):
    if isinstance(value, dict):
        return lua.table_from({key: tables(lua, below) for key, below in value.items()})
    if isinstance(value, list):
        return lua.table_from([tables(lua, below) for below in value])
    return value


@pytest.mark.deep
@pytest.mark.parametrize("name", STATES)
def test_every_state_is_shown_as_what_it_is(name):
    body = STATES[name].body()
    expected = "Suspended" if STATES[name].reason == "ScaledToZero" else HEALTH[kstatus(body)]
    shown, message = health(body)
    assert shown == expected
    assert message.startswith(STATES[name].reason)


def test_a_service_without_a_status_is_not_healthy():
    bare = {"kind": "InferenceService", "metadata": {"generation": 1}}
    assert health(bare)[0] == "Progressing"
    assert health(bare | {"status": {}})[0] == "Progressing"
    assert health(bare | {"status": {"conditions": []}})[0] == "Progressing"


def test_a_profile_that_no_install_writes_a_status_of_holds_up_nothing():
    assert health({"kind": "ServingProfile", "metadata": {"generation": 1}})[0] == "Healthy"


def test_an_edit_that_is_not_observed_yet_is_progressing():
    body = STATES["serving"].body()
    body["metadata"]["generation"] += 1
    assert health(body)[0] == "Progressing"


@pytest.mark.parametrize(("spec", "shown"), [({}, "Healthy"), ({"images": {}}, "Degraded")])
def test_a_profile_is_healthy_if_services_can_use_it(spec, shown):
    body = profile_body(**spec)
    body["metadata"] |= {"generation": 1}
    body["status"] = profile_status(parse_profile(body), 0, "2026-01-01T00:00:00Z")
    assert health(body)[0] == shown


def test_the_snippet_holds_this_script_for_every_kind_with_conditions():
    data = yaml.safe_load((FOLDER / "resource-customizations.yaml").read_text())["data"]
    with_conditions = [kind.kind for kind in KINDS if "status" in kind.model.model_fields]
    assert data == {f"resource.customizations.health.{GROUP}_{kind}": SCRIPT for kind in with_conditions}
