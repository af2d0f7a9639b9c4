"""One number for what is released together: packages, chart and images; and the documents name them all."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_chart_images_and_documents_have_the_packages_version():
    chart = yaml.safe_load((ROOT / "charts/pagoda/Chart.yaml").read_text())
    values = yaml.safe_load((ROOT / "charts/pagoda/values.yaml").read_text())
    images = [values["operator"]["image"], values["gateway"]["image"], *values["defaultProfile"]["images"].values()]
    assert [chart["version"], chart["appVersion"], *(image.partition(":")[2] for image in images)] == [VERSION] * (2 + len(images))
    install, upgrade = ((ROOT / f"docs/operations/{page}.md").read_text() for page in ("install", "upgrade"))
    # The rendered chart has no other ones, and the operator makes pods of its profile's (test_chart.py, render/test_pod.py).
    assert re.findall(r"^\| `(\S+:\S+)` \|", install, re.MULTILINE) == images
    assert re.findall(r"=REGISTRY/(\S+)", upgrade) == images
