"""Rules over sources that no linter of ours has: a syntax tree in, the lines that break it out. Read by tests/security/test_rules.py."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
# The source roots, for every test and check that goes over all of them.
COMPONENTS = (
    "contracts",
    "kube",
    "sizing",
    "placement",
    "kernels",
    "daemon",
    "operator",
    "replay",
    "gateway",
    "cli",
    "devcluster",
    "fetch",
)
Rule = Callable[[ast.AST], Iterator[tuple[int, str]]]

UNSAFE_MODULES = frozenset(("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle", "_pickle"))
UNSAFE_CALLS = frozenset(
    (
        *("torch.load", "torch.jit.load", "numpy.load", "np.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "recv_pyobj"),
        *("send_pyobj", "torch.hub.load", "read_pickle"),
    )
)
CODE_CALLS = frozenset(("eval", "exec", "compile", "__import__", "os.system", "os.popen", "runpy.run_path", "importlib.import_module"))
# The verbs of pagoda_operator.run.apply.Cluster and the leader's store, and what their client is made of.
WRITING_VERBS = frozenset(("create", "replace", "apply", "apply_status", "annotate", "delete"))
CLIENT_INSIDES = ("_call", "_patch", "_send")
FORM_NAMES = frozenset(("UploadFile", "FileResponse", "StaticFiles", "FormData", "FormParser", "MultiPartParser"))


def components() -> list[Path]:
    """Every source of the product."""
    return [path for component in COMPONENTS for path in (ROOT / component).rglob("*.py") if "pb" not in path.parts]


def broken(rule: Rule, paths: list[Path] | None = None) -> list[str]:
    """`path:line what`, of every source."""
    found = []
    for path in components() if paths is None else paths:
        found += [f"{path.relative_to(ROOT)}:{line} {what}" for line, what in rule(ast.parse(path.read_text()))]
    return found


def breaks(rule: Rule, source: str) -> bool:
    """Whether a rule sees that source."""
    return any(True for _ in rule(ast.parse(source)))


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, _dotted(node.func)


def unsafe_deserialisation(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for name in names:
            if name.split(".")[0] in UNSAFE_MODULES:
                yield node.lineno, f"imports {name}"
    for call, name in _calls(tree):
        if name in UNSAFE_CALLS or name.rpartition(".")[2] in ("recv_pyobj", "send_pyobj", "read_pickle"):
            yield call.lineno, f"calls {name}"


def code_from_data(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for call, name in _calls(tree):
        if name in CODE_CALLS:
            yield call.lineno, f"calls {name}"
        for keyword in call.keywords:
            given = keyword.value.value if isinstance(keyword.value, ast.Constant) else True
            if keyword.arg in ("trust_remote_code", "shell") and given is not False:
                yield call.lineno, f"{name}({keyword.arg}={given})"


def forms_and_files(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.alias) and node.name in FORM_NAMES:
            yield node.lineno, node.name
    for call, name in _calls(tree):
        if name.endswith(".form") and not call.args:
            yield call.lineno, f"calls {name}"


def every_interface(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value in ("0.0.0.0", "tcp://*", "tcp://0.0.0.0", "[::]", "::")
        ):
            yield node.lineno, node.value


def secrets_compared(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """`==` with something that is named like a key, a token or a digest of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(op, ast.Eq | ast.NotEq) for op in node.ops):
            for side in (node.left, *node.comparators):
                name = _dotted(side).rpartition(".")[2].lower() if isinstance(side, ast.Name | ast.Attribute) else ""
                if name in (
                    "api_key",
                    "secret",
                    "password",
                    "bearer",
                    "key_hash",
                    "key_digest",
                    "token_hash",
                    "authorization",
                    "presented",
                ):
                    yield node.lineno, name


def host_header(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What is asked of a request's Host or of the address that a framework rebuilds from it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and node.slice.value in ("host", b"host", "Host"):
            yield node.lineno, "a header called host"
        if isinstance(node, ast.Attribute) and node.attr == "base_url" and _dotted(node.value).endswith("request"):
            yield node.lineno, "request.base_url"
    for call, name in _calls(tree):
        first = call.args[0] if call.args else None
        if name.endswith("headers.get") and isinstance(first, ast.Constant) and str(first.value).lower() == "host":
            yield call.lineno, "a header called host"


def cluster_writes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The cluster's writing verbs, with the kind that is written: called, or handed on to somebody who calls them."""
    calls = list(_calls(tree))
    called = {id(call.func) for call, _ in calls}
    for call, name in calls:
        verb = name.rpartition(".")[2]
        if isinstance(call.func, ast.Attribute) and verb in WRITING_VERBS and not _of_text(call, verb):
            yield call.lineno, f"{verb}({_dotted(call.args[0]) if call.args else ''})"
        if verb in CLIENT_INSIDES and name != f"self.{verb}":
            yield call.lineno, f"calls {name}"
        if name == "getattr" and len(call.args) > 1 and isinstance(call.args[1], ast.Constant) and call.args[1].value in WRITING_VERBS:
            yield call.lineno, f"getattr {call.args[1].value}"
        for given in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(given, ast.Attribute) and given.attr in WRITING_VERBS - {"annotate"} and id(given) not in called:
                yield call.lineno, f"hands on {given.attr}"


def _of_text(call: ast.Call, verb: str) -> bool:
    """`text.replace(old, new)`."""
    return verb == "replace" and len(call.args) == 2
