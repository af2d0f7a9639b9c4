"""One number for what is released together: packages, chart, images and the commands of the documents."""

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
    documented = re.findall(r"REGISTRY/\w+:(\S+)", (ROOT / "docs/operations/install.md").read_text())
    assert [chart["version"], chart["appVersion"], *(image.partition(":")[2] for image in images)] == [VERSION] * (2 + len(images))
    assert documented == [VERSION] * 4
