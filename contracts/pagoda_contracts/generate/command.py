"""Writes everything generated: CRDs, the chart's CRDs and values.schema.json, docs/crds.md, docs/metrics.md,
docs/conditions.md, protobuf code.

`pagoda-generate [--check] ROOT`; `--check` writes nothing and exits 1 on any difference. A development tool: it alone needs grpcio-tools.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from pagoda_contracts.crds import crdgen
from pagoda_contracts.generate import chartschema, conditiondocs, crddocs, metricdocs

PROTO_DIR = "contracts/proto/pagoda/v1"
PB_DIR = "contracts/pagoda_contracts/pb"


def protobuf_files(root: Path) -> dict[str, str]:
    """Path below the root → generated protobuf code; messages only, the components register typed handlers themselves."""
    from importlib.resources import files

    from grpc_tools import protoc  # a development dependency

    sources = sorted((root / PROTO_DIR).glob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [
            "protoc",
            f"-Ipagoda_contracts/pb={root / PROTO_DIR}",
            f"-I{files('grpc_tools') / '_proto'}",  # google.protobuf
            f"--python_out={scratch}",
            f"--pyi_out={scratch}",
            *map(str, sources),
        ]
        if protoc.main(arguments) != 0:
            sys.exit("protoc failed: see above")
        produced = Path(scratch) / "pagoda_contracts/pb"
        return {f"{PB_DIR}/{path.name}": path.read_text() for path in sorted(produced.iterdir())}


def main() -> None:
    """Door of `pagoda-generate`."""
    parser = argparse.ArgumentParser(prog="pagoda-generate", description=__doc__)
    parser.add_argument("root", type=Path, help="the project's root")
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 on a difference")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    texts = {page.PATH: page.text() for page in (chartschema, conditiondocs, crddocs, metricdocs)}
    generated = crdgen.files() | texts | protobuf_files(root)
    stale = [path for path, text in generated.items() if not _same(root / path, text)]
    if arguments.check and stale:
        sys.exit(f"stale: {', '.join(stale)}; run `make generate`")
    for path in stale:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(generated[path])


def _same(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text() == text
