"""Build hook: compiles the CPU's native ops into wheel and checkout. Called by hatchling.

Without an x86-64 compiler the wheel is pure Python and torch does all the work.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_RECIPE = "kernels/pagoda_kernels/cpu/build.py"


class NativeOps(BuildHookInterface[Any]):
    """Makes the libraries before the files are collected."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """One wheel for all Python versions and processors: the libraries know no Python."""
        libraries = _recipe(Path(self.root)).build()
        if not libraries:
            self.app.display_warning(f"{version}: no x86-64 C++ compiler, the CPU's native ops are left out")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sys.platform}_x86_64"
        build_data["artifacts"] += [str(library.relative_to(self.root)) for library in libraries]


def _recipe(root: Path) -> Any:
    spec = importlib.util.spec_from_file_location("pagoda_build_recipe", root / _RECIPE)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(root / _RECIPE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
