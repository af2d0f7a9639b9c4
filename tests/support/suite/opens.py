"""Imports modules in a process of their own in which some packages cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection

_GUARD = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {forbidden!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
for module in {modules!r}:
    for known in [name for name in sys.modules if name.startswith("pagoda_")]:
        del sys.modules[known]  # each opens by itself, not behind another
    try:
        __import__(module)
    except ModuleNotFoundError as error:
        sys.exit(f"{{module}}: ModuleNotFoundError: {{error}}")
"""


def opened(modules: Collection[str], forbidden: set[str]) -> subprocess.CompletedProcess[str]:
    """One process imports all the modules, each as if it were the first of ours; its error names the one that fails."""
    program = _GUARD.format(modules=tuple(modules), forbidden=forbidden)
    return subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False)
