"""The budgets that ruff cannot count: lines of functions and files, medians, and words that live in one place only."""

import ast
import statistics
import tomllib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from support.judges.source_rules import COMPONENTS

ROOT = Path(__file__).parents[2]
MAX_FUNCTION, P90_FUNCTION, MEDIAN_FUNCTION, MAX_FILE = 60, 30, 10, 300
MAX_FOLDER = 25
MAX_OPERATOR_LINES, MAX_OPERATOR_FILES = 13_000, 100
PACKAGES = tuple(f"{component}/pagoda_{component}" for component in COMPONENTS)
TREES = (*PACKAGES, "tests/support", "bench", "examples")


@cache
def sources() -> list[Path]:
    found = [path for component in COMPONENTS for path in (ROOT / component).rglob("*.py") if "pb" not in path.parts]
    return [*found, *(ROOT / "examples").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]


class Facts(NamedTuple):
    """What is asked of a file. Its tree is not kept: a full collection of garbage looks at every node of all trees."""

    docstring: str | None
    functions: list[tuple[str, int]]
    imports: list[str]
    strings: list[str]
    calls: list[tuple[str, str]]


@cache
def facts(path: Path) -> Facts:
    module = ast.parse(path.read_text())
    nodes = walked(module)
    functions = nodes[ast.FunctionDef] + nodes[ast.AsyncFunctionDef]
    return Facts(
        ast.get_docstring(module),
        [
            (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", (node.end_lineno or 0) - node.lineno + 1)
            for node in functions
            if not is_kernel(node)
        ],
        imported(nodes),
        strings(nodes),
        called(nodes),
    )


def is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Of a kernel in Triton: what it calls is compiled into it, and its loop has to stand in one place to be pipelined."""
    return any(ast.unparse(decorator).startswith("triton.jit") for decorator in function.decorator_list)


def walked(module: ast.Module) -> dict[type, list[ast.AST]]:
    """Every node by its kind. ast.walk takes twice as long, and more than the parser."""
    found, left = defaultdict(list), [module]
    while left:
        node = left.pop()
        found[type(node)].append(node)
        for value in vars(node).values():
            if isinstance(value, list):
                left += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                left.append(value)
    return found


def test_the_operator_stays_a_house_that_one_person_can_know():
    """Its size is a limit of the design: what it needs and others need, too, is a package below it (docs/decisions/0026)."""
    files = list((ROOT / "operator").rglob("*.py"))
    lines = sum(len(path.read_text().splitlines()) for path in files)
    assert (lines <= MAX_OPERATOR_LINES, len(files) <= MAX_OPERATOR_FILES) == (True, True), f"{lines} lines in {len(files)} files"


def test_files_stay_short():
    long = {str(path.relative_to(ROOT)): lines for path in sources() if (lines := len(path.read_text().splitlines())) > MAX_FILE}
    assert long == {}


def test_functions_stay_short():
    lengths = [entry for path in sources() for entry in facts(path).functions]
    assert [entry for entry in lengths if entry[1] > MAX_FUNCTION] == []
    counts = sorted(count for _, count in lengths)
    assert statistics.median(counts) <= MEDIAN_FUNCTION
    assert counts[int(len(counts) * 0.9)] <= P90_FUNCTION


@pytest.mark.parametrize("package", TREES)
def test_no_two_folders_import_each_other(package):
    """The package's own top level counts as a folder: what stands beside `__main__` is imported by nothing in a folder."""
    found = folder_imports(package)
    assert sorted((one, other) for one, other in found if one < other and (other, one) in found) == []


@pytest.mark.parametrize("package", TREES)
def test_folders_stay_small(package):
    files = Counter(folder_of(*module) for module in modules_of(package).items())
    assert {folder: count for folder, count in files.items() if count > MAX_FOLDER} == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_each_folder_has_its_layer(package):
    """A folder that the import contract does not name could import anything. One that only holds folders needs none."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    lines = [(box, line) for one in contracts if one["type"] == "layers" for box in one.get("containers", [""]) for line in one["layers"]]
    named = {f"{box}.{name.strip()}".lstrip(".") for box, line in lines for name in line.split("|")}
    folders = folders_of(package)
    assert len(folders) == 1 or folders - named == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_page_names_each_folder(package):
    """A newcomer looks up the table of packages first."""
    row = next(line for line in (ROOT / "docs/architecture.md").read_text().splitlines() if line.startswith(f"| `{package}` |"))
    listed = braced(row.rstrip(" |").rpartition("|")[2].strip(" `–"))
    assert listed == {folder.partition(".")[2].replace(".", "/") for folder in folders_of(package)}


@cache
def folders_of(package: str) -> set[str]:
    """Folders below the package's top that hold modules; generated code is not judged."""
    found = {folder_of(*module) for module in modules_of(package).items() if module[1].name != "__init__.py"}
    return found - {Path(package).name, "pagoda_contracts.pb"}


def braced(text: str) -> set[str]:
    """`api/{front,http}/ kv/` names api/front, api/http and kv."""
    found = set()
    for word in text.split():
        head, _, tail = word.strip("/").partition("{")
        found |= {head + name for name in tail.rstrip("}").split(",")}
    return found


@cache
def modules_of(package: str) -> dict[str, Path]:
    """The package's files by their dotted names; a folder goes by the name of its `__init__`."""
    folder = ROOT / package
    paths = [path.relative_to(folder.parent).with_suffix("") for path in folder.rglob("*.py")]
    return {".".join(path.parts).removesuffix(".__init__"): folder.parent / path.with_suffix(".py") for path in paths}


def folder_of(module: str, path: Path) -> str:
    """Of a module, its folder; of a folder, itself."""
    return module if path.name == "__init__.py" else module.rpartition(".")[0]


def folder_imports(package: str) -> set[tuple[str, str]]:
    """Which folder has a module that imports a module of which other folder, inside functions too."""
    modules = modules_of(package)
    home = {module: folder_of(module, path) for module, path in modules.items()}
    return {(home[one], home[other]) for one, path in modules.items() for other in facts(path).imports if other in home} - {
        (folder, folder) for folder in home.values()
    }


def imported(nodes: dict[type, list[ast.AST]]) -> list[str]:
    """Dotted names; `from a.b import c` may mean the module a.b or the module a.b.c."""
    found = [alias.name for node in nodes[ast.Import] for alias in node.names]
    for node in nodes[ast.ImportFrom]:
        if node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found


def test_modules_say_what_they_are():
    silent = [str(path.relative_to(ROOT)) for path in sources() if path.read_text().strip() and facts(path).docstring is None]
    assert silent == []


@pytest.mark.parametrize("word", ["serving." + "pagoda.dev", "x-" + "pagoda-route", "x-" + "should-retry", "pagoda.v1." + "Daemon"])
def test_words_that_cross_processes_are_written_once(word):
    holders = [str(path.relative_to(ROOT)) for path in sources() if any(word in text for text in facts(path).strings)]
    assert holders == ["contracts/pagoda_contracts/names.py"]


@pytest.mark.parametrize(
    ("word", "most"),
    [
        pytest.param("top_n_sigma", 4, id="a sampling parameter"),
        pytest.param("WAITING_FOR_CAPACITY", 2, id="a reason of Ready"),
        pytest.param("kv_headroom", 1, id="a scorer"),
    ],
)
def test_what_is_often_added_is_added_in_few_files(word, most):
    """Files that a person writes: docs, tests and generated code apart."""
    written = [path for path in sources() if "bench" not in path.relative_to(ROOT).parts] + [*(ROOT / "contracts/proto").rglob("*.proto")]
    assert 1 <= len([path for path in written if word in path.read_text()]) <= most


def strings(nodes: dict[type, list[ast.AST]]) -> list[str]:
    """String constants other than docstrings: prose may name a word, code may not retype it."""
    prose = {id(node.value) for node in nodes[ast.Expr]}
    return [node.value for node in nodes[ast.Constant] if isinstance(node.value, str) and id(node) not in prose]


def test_no_init_file_shadows_the_standard_library():
    stray = [path for component in COMPONENTS if (path := ROOT / component / "__init__.py").exists()]
    assert stray + list((ROOT / "tests").rglob("__init__.py")) == []


def test_equipment_of_tests_lies_in_its_packages():
    assert list((ROOT / "tests/support").glob("*.py")) == []


def test_nothing_loads_code_from_data():
    banned = {("torch", "load"), ("pickle", "load"), ("pickle", "loads")}
    calls = [(str(path.relative_to(ROOT)), call) for path in sources() for call in facts(path).calls]
    assert [call for call in calls if call[1] in banned or call[1][1] in ("eval", "exec")] == []


def called(nodes: dict[type, list[ast.AST]]) -> list[tuple[str, str]]:
    out = []
    for node in nodes[ast.Call]:
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            out.append((node.func.value.id, node.func.attr))
        if isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec"):
            out.append(("builtins", node.func.id))
    return [name for name in out if name[0] != "model"]
