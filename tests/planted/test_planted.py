"""Small faults that a tired engineer might write, planted one at a time in a copy of this tree: each turns the tests that it names red.
`make test-full`.

The lists are tests/planted/faults/*.toml; the working tree is never touched. A fault that stays green is a missing test.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pagoda_kernels.cpu import choice
from support.judges.source_rules import COMPONENTS
from support.suite.planted import Fault, known_faults, planted

pytestmark = [pytest.mark.sweep, pytest.mark.full, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
PYTEST = Path(sys.executable).parent / "pytest"
GREEN, RED = 0, 1


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All that git knows or would add, and the compiled ops."""
    folder = tmp_path_factory.mktemp("planted")
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    native = [str(path.relative_to(ROOT)) for path in (ROOT / "kernels").rglob("*.so")]
    for name in {*listed.stdout.splitlines(), *native}:
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def judged(copy: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """What pytest says of these tests in the copy, whose packages come before the installed ones."""
    path = os.pathsep.join(str(copy / component) for component in COMPONENTS)
    own = os.environ | {"PYTHONPATH": path, "PYTHONPYCACHEPREFIX": str(copy / ".pycache")}
    argv = [str(PYTEST), "-q", "-rfE", "--no-header", "-p", "no:cacheprovider", "-m", "not full", *tests]
    return subprocess.run(argv, cwd=copy, env=own, capture_output=True, text=True, check=False, timeout=1500)


def compiled(copy: Path, fault: Fault) -> None:
    """The copy's native ops, from its sources as they are now."""
    if "/cpu/src/" not in fault.file:
        return
    if choice.missing() is not None:
        pytest.skip(f"the native ops do not run here: {choice.missing()}")
    for library in (copy / "kernels").rglob("*.so"):
        library.unlink()
    own = os.environ | {"PYTHONPATH": str(copy / "kernels")}
    build = "from pagoda_kernels.cpu.build import build; assert build()"
    subprocess.run([sys.executable, "-P", "-c", build], env=own, check=True, timeout=1500)


def test_without_a_fault_the_tests_are_green(copy: Path) -> None:
    tests = {test for fault in known_faults() for test in fault.tests}
    done = judged(copy, *sorted(tests))
    assert done.returncode == GREEN, done.stdout[-4000:]


@pytest.mark.parametrize("fault", known_faults(), ids=lambda fault: f"{fault.component}: {fault.name}")
def test_a_planted_fault_turns_its_tests_red(copy: Path, fault: Fault) -> None:
    try:
        with planted(copy, fault):
            compiled(copy, fault)
            done = judged(copy, *fault.tests)
    finally:
        compiled(copy, fault)
    assert done.returncode == RED, f"{fault.name} stays green\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    failed = [line.removeprefix("FAILED ") for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    green = [test for test in fault.tests if not any(line.startswith(test) for line in failed)]
    assert green == [], f"{fault.name} leaves these green: {green}"
