"""What is compiled, from which module, under which version, and into which folder. Pure but for reading the module files."""

import platform
import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pagoda_devcluster.cluster.errors import MissingPrerequisiteError

KUBERNETES = ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl"]
RECIPE_FILES = [
    *("go.mod", "go.sum", "pause/main.go", "coredns/go.mod", "coredns/go.sum", "coredns/main.go"),
    *("kubeconform/go.mod", "kubeconform/go.sum"),
]


@dataclass(frozen=True)
class Binary:
    """One thing to compile and the words it must answer when asked for its version (none: it has no version)."""

    name: str
    package: str
    module: str = "."
    variables: tuple[tuple[str, str], ...] = ()
    version_arguments: tuple[str, ...] = ("--version",)
    version_text: str = ""

    def build_argv(self, target: Path) -> list[str]:
        linker = " ".join(["-s", "-w", *(f"-X {variable}={value}" for variable, value in self.variables)])
        switches = ["-v", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", linker]
        return ["go", "build", *switches, "-o", str(target), self.package]

    def list_argv(self) -> list[str]:
        return ["go", "list", "-deps", self.package]


@dataclass(frozen=True)
class Recipe:
    """The module folder, what it pins, and the text that decides what is compiled."""

    folder: Path
    kubernetes: str
    etcd: str
    helm: str
    coredns: str
    kubeconform: str
    sources: str

    @property
    def key(self) -> str:
        """Names the folder of this very set: another module version, source line or linker variable is another set."""
        content = self.sources + repr(self.binaries)
        return f"{self.kubernetes}-{platform.machine()}-{sha256(content.encode()).hexdigest()[:10]}"

    @property
    def binaries(self) -> list[Binary]:
        """Longest first: what the others share is compiled with it, and the bar does not end on a surprise."""
        return [*(kubernetes_binary(name, self.kubernetes) for name in KUBERNETES), *self._others()]

    def _others(self) -> list[Binary]:
        etcd = Binary("etcd", "go.etcd.io/etcd/server/v3", version_text=self.etcd.removeprefix("v"))
        coredns = Binary("coredns", ".", "coredns", version_arguments=("-version",), version_text=self.coredns.removeprefix("v"))
        own = [kubeconform_binary(self.kubeconform), Binary("pause", "./pause", version_arguments=())]
        return [helm_binary(self.helm, self.kubernetes), etcd, coredns, *own]


def kubernetes_binary(name: str, version: str) -> Binary:
    """Major and minor too: charts read them from the server's answer, where they would be empty."""
    major, minor, _ = version.removeprefix("v").split(".")
    base = "k8s.io/component-base/version"
    variables = ((f"{base}.gitVersion", version), (f"{base}.gitMajor", major), (f"{base}.gitMinor", minor))
    arguments = ("version", "--client") if name == "kubectl" else ("--version",)
    return Binary(name, f"k8s.io/kubernetes/cmd/{name}", variables=variables, version_arguments=arguments, version_text=version)


def helm_binary(version: str, kubernetes: str) -> Binary:
    """Without the two variables `helm template` believes in Kubernetes 1.20 and refuses charts that ask for a newer one."""
    major, minor, _ = kubernetes.removeprefix("v").split(".")
    variables = [("helm.sh/helm/v3/internal/version.version", version)]
    for package in ("chartutil", "lint/rules"):
        variables += [(f"helm.sh/helm/v3/pkg/{package}.k8sVersionMajor", major), (f"helm.sh/helm/v3/pkg/{package}.k8sVersionMinor", minor)]
    return Binary("helm", "helm.sh/helm/v3/cmd/helm", ".", tuple(variables), ("version", "--short"), version)


def kubeconform_binary(version: str) -> Binary:
    package = "github.com/yannh/kubeconform/cmd/kubeconform"
    return Binary("kubeconform", package, "kubeconform", (("main.version", version),), ("-v",), version)


def pinned(module_file: str, module: str) -> str:
    found = re.search(rf"^(?:require)?\s*{re.escape(module)} (v\S+)", module_file, re.MULTILINE)
    if not found:
        raise MissingPrerequisiteError(f"devcluster pins no {module} in its go.mod files")
    return found[1]


def read(folder: Path) -> Recipe:
    """`folder` is devcluster/ of a checkout; the wheel has none, on purpose."""
    if not (folder / "go.mod").exists():
        raise MissingPrerequisiteError(f"no go.mod in {folder}: run pagoda-devcluster from a checkout (`pip install --editable .`)")
    main, dns = (folder / "go.mod").read_text(), (folder / "coredns" / "go.mod").read_text()
    return Recipe(
        folder=folder,
        kubernetes=pinned(main, "k8s.io/kubernetes"),
        etcd=pinned(main, "go.etcd.io/etcd/server/v3"),
        helm=pinned(main, "helm.sh/helm/v3"),
        coredns=pinned(dns, "github.com/coredns/coredns"),
        kubeconform=pinned((folder / "kubeconform" / "go.mod").read_text(), "github.com/yannh/kubeconform"),
        sources="".join(without_comments((folder / file).read_text()) for file in RECIPE_FILES),
    )


def without_comments(text: str) -> str:
    """A comment that is reworded compiles nothing anew."""
    return "".join(line for line in text.splitlines(keepends=True) if line.strip() and not line.lstrip().startswith("//"))


def of_checkout() -> Recipe:
    return read(Path(__file__).resolve().parents[2])
