"""Claims with the files of three adapters."""

import pytest
from support.engine.adapter_files import write_adapter


@pytest.fixture
def claims(tmp_path):
    for name in ("one", "two", "three"):
        write_adapter(tmp_path / "claims" / "loras" / name, name.encode())
    return tmp_path / "claims"
