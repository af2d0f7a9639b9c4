"""Names of children: what makes a new revision, and what must not."""

from hypothesis import given
from hypothesis import strategies as st
from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_placement.revision import identify

BASE = {"model": {"uri": "pvc://models/tiny"}, "accelerators": [{"cpu": {"cores": "250m", "memory": "1Gi"}}]}

GOLDEN = ("tiny-fbfb3e3c7c", "efe31c721f", "cf231dedeb")


def revision(**changes):
    spec = InferenceServiceSpec.model_validate(BASE | changes)
    return identify("tiny", spec, spec.accelerators[0])


def test_the_names_of_v0_1_are_final():
    # A change here renames every child of every running service: all their pods would be replaced.
    assert revision() == GOLDEN


def test_a_default_written_out_is_the_same_revision():
    engine = {"maxConcurrency": 64, "dtype": "auto", "kvCache": {"blockSize": 16}}
    assert revision(engine=engine, drain={"timeout": "30s"}, profileRef={"name": "default"}, health={}, slo={}) == revision()


def test_replicas_and_further_alternatives_are_no_new_revision():
    more = [*BASE["accelerators"], {"cpu": {"cores": 8, "memory": "8Gi"}}]
    assert revision(replicas=7, accelerators=more) == revision()


def test_each_field_that_a_replica_runs_makes_a_new_revision():
    changes = [
        {"model": {"uri": "pvc://models/other"}},
        {"model": {"uri": "pvc://models/tiny", "servedNames": ["a"]}},
        {"engine": {"maxModelLen": 128}},
        {"engine": {"toolParser": "hermes"}},
        {"engine": {"tokenBudget": 512}},
        {"engine": {"threads": 1}},
        {"engine": {"loadTimeout": "10m"}},
        {"drain": {"timeout": "31s"}},
        {"health": {"progressTimeout": "10m"}},
        {"slo": {"ttft": "800ms"}},
        {"clientKeys": {"name": "keys"}},
        {"clientKeys": {"name": "others"}},
        {"profileRef": {"name": "h100"}},
        {"podTemplate": {"metadata": {"labels": {"a": "b"}}}},
        {"accelerators": [{"cpu": {"cores": "500m", "memory": "1Gi"}}]},
    ]
    names = {revision(**change).name for change in changes} | {revision().name}
    assert len(names) == len(changes) + 1


def test_another_accelerator_is_another_child_of_the_same_revision():
    other = revision(accelerators=[{"cpu": {"cores": 2, "memory": "1Gi"}}])
    assert other.hash == revision().hash
    assert (other.accelerator, other.name) != (revision().accelerator, revision().name)


@given(st.dictionaries(st.sampled_from(["b", "a", "c"]), st.text(max_size=5), min_size=2))
def test_the_order_of_keys_does_not_matter(labels):
    turned = dict(reversed(labels.items()))
    assert revision(podTemplate={"metadata": {"labels": labels}}) == revision(podTemplate={"metadata": {"labels": turned}})


def test_the_version_before_named_its_revisions_the_same():
    """Recorded from 0.1: another hash for the same words would roll every service of every cluster."""
    spec = InferenceServiceSpec.model_validate({"model": {"uri": "pvc://m"}, "accelerators": [{"cpu": {"cores": "1", "memory": "1Gi"}}]})
    assert identify("x", spec, spec.accelerators[0]) == ("x-c5b83cdd7c", "da368231e4", "60b613e434")


def test_another_adopt_value_is_another_revision():
    words = [None, "2", "2026-11-21", None]
    base = {"model": {"uri": "pvc://m"}, "accelerators": [{"cpu": {"cores": "1", "memory": "1Gi"}}]}
    specs = [InferenceServiceSpec.model_validate(base | ({"profileRef": {"adopt": word}} if word else {})) for word in words]
    names = [identify("x", spec, spec.accelerators[0]).name for spec in specs]
    assert len(set(names)) == 3
    assert names[0] == names[3]
