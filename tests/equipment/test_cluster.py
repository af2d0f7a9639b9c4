"""The support module that other tests talk to clusters with."""

from pathlib import Path

import pytest
from support.kube import cluster


@pytest.mark.parametrize("argument", ["--context=x", "--kubeconfig", "-s", "--server=y", "--token=z"])
def test_another_cluster_is_refused(argument):
    with pytest.raises(ValueError, match="its own cluster only"):
        cluster.refuse_elsewhere(["get", "pods", argument])
    cluster.refuse_elsewhere(["exec", "pod", "--", "tool", argument])


def test_a_kubeconfig_of_another_context_is_refused(tmp_path: Path):
    (tmp_path / "k").write_text('{"current-context": "production"}')
    with pytest.raises(ValueError, match="production"):
        cluster.check_context(tmp_path / "k", "pagoda-dev")


@pytest.mark.deep
def test_a_named_cluster_that_is_down_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PAGODA_DEVCLUSTER_HOME", str(tmp_path))
    monkeypatch.setenv("PAGODA_TEST_CLUSTER", "gone")
    with pytest.raises(RuntimeError, match="not up"), cluster.running_cluster():
        pass
