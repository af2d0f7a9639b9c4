"""An image of one's own, from a Dockerfile to answers: built by buildah, loaded, run under Pod Security `restricted`."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from support.kube.cluster import Cluster

pytestmark = [pytest.mark.cluster, pytest.mark.skipif(os.geteuid() != 0, reason="a kubelet node needs root")]

NAME = "localhost/team/own-probe:7"
MIG = "nvidia.com/mig-3g.40gb"
# The image says which user; all else that `restricted` asks for is the pod's to say.
RESTRICTED = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@pytest.fixture(scope="module")
def own(cluster: Cluster, probe_binary: bytes, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("own")
    context = folder / "context"
    context.mkdir()
    shutil.copy(Path(__file__).parent / "probe" / "Dockerfile", context)
    (context / "probe").write_bytes(probe_binary)
    (context / "probe").chmod(0o755)
    buildah(folder, "bud", "--quiet", "--tag", NAME, str(context))
    buildah(folder, "push", "--quiet", NAME, f"oci-archive:{folder}/own.tar:{NAME}")
    return cluster.tool("load-image", str(folder / "own.tar")).strip()


def buildah(folder: Path, *arguments: str) -> None:
    store = ["--root", str(folder / "store"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]
    env = os.environ | {"BUILDAH_ISOLATION": "chroot", "TMPDIR": str(folder)}
    done = subprocess.run(["buildah", *store, *arguments], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr


def test_it_runs_restricted_as_the_user_it_names_and_its_service_and_logs_are_reached(own: str, namespace):
    assert own == NAME
    namespace.pod("own", "serve", ":8000", "hello from our image", image=own, securityContext=RESTRICTED)
    namespace.kubectl("wait", "pod/own", "--for=condition=Ready", "--timeout=300s")
    address = namespace.expose("own")
    assert "hello from our image" in namespace.ask("get", f"http://{address}")
    assert httpx.get(f"http://{address}", trust_env=False, timeout=300).text.startswith("hello from our image")
    assert "65534" in namespace.kubectl("exec", "own", "--", "/probe", "read", "/proc/self/status").split("Uid:")[1].split("\n")[0]
    namespace.pod("talker", "lookup", "own", image=own, securityContext=RESTRICTED)
    namespace.kubectl("wait", "pod/talker", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=300s")
    assert "quick=true" in namespace.kubectl("logs", "talker")


def test_the_same_image_as_root_is_refused_by_restricted(own: str, namespace):
    with pytest.raises(RuntimeError, match=r"violates PodSecurity .*runAsNonRoot"):
        namespace.pod("root", "serve", ":8000", "x", image=own, securityContext={"seccompProfile": {"type": "RuntimeDefault"}})


def test_its_service_account_is_known_to_the_api_server_and_may_what_it_was_given(own: str, namespace):
    pods = f"https://kubernetes.default.svc/api/v1/namespaces/{namespace.name}/pods"
    refused = namespace.ask("get", pods, image=own, securityContext=RESTRICTED)
    assert refused.startswith("403")
    assert f"system:serviceaccount:{namespace.name}:default" in refused
    namespace.kubectl("create", "role", "reader", "--verb=list", "--resource=pods")
    namespace.kubectl("create", "rolebinding", "reader", "--role=reader", f"--serviceaccount={namespace.name}:default")
    allowed = namespace.ask("get", pods, image=own, securityContext=RESTRICTED)
    assert allowed.startswith("200")
    assert json.loads(allowed.removeprefix("200 "))["kind"] == "PodList"


def test_a_slice_that_no_node_offers_leaves_the_pod_pending_with_the_schedulers_reason(own: str, namespace, scheduling: Callable[..., str]):
    namespace.pod("slice", "serve", ":8000", "x", image=own, limits={MIG: 1})
    namespace.kubectl("wait", "pod/slice", "--for=jsonpath={.status.conditions[0].reason}=Unschedulable", "--timeout=300s")
    # Another test's nodes may have joined the cluster; the scheduler counts them in the same message.
    assert re.search(rf"0/\d+ nodes are available: (.*, )?\d+ Insufficient {re.escape(MIG)}", scheduling(namespace, "slice"))
