"""What is known of a model's shape: published models by name, any other from the report of an inspection. Pure.

The operator keeps the report in the ConfigMap `<service>-model`. Another address or revision of the model is inspected again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pagoda_contracts.resources.service import InferenceServiceSpec
from pagoda_sizing.errors import SizingError
from pagoda_sizing.families import parse_model
from pagoda_sizing.model import Model
from pagoda_sizing.replica import config_of
from pagoda_sizing.served import misshapen, unserved

from pagoda_placement.result import Undecided
from pagoda_placement.values import digest

SOURCE_KEY: Final = "source"
REPORT_KEY: Final = "model.json"


class Inspection(NamedTuple):
    """The shape; or, while it is unknown, what is being done about it; or why it cannot be known; or why no daemon serves the model.
    `size`: bytes of its files, if an inspection counted them."""

    shape: Model | None = None
    size: int = 0
    unknown: Undecided | None = None
    unknowable: str = ""
    unserved: str = ""


def map_name(service: str) -> str:
    """Returns the name of the ConfigMap with the report."""
    return f"{service}-model"


def source_of(spec: InferenceServiceSpec) -> str:
    """Returns a name for the files of the model: another address or revision is another model."""
    return digest([spec.model.uri, spec.model.revision])


def is_report(text: str) -> bool:
    """Whether the text has the form of an inspection's report."""
    try:
        report = json.loads(text)
    except ValueError:
        return False
    return isinstance(report, dict) and isinstance(report.get("config"), dict)


def known_model(service: str, spec: InferenceServiceSpec, kept: Mapping[str, Any]) -> Inspection | None:
    """Returns what the model's name or a kept report says; None if neither is known. `kept`: the ConfigMap's data."""
    if (config := config_of(spec.model.uri)) is not None:
        return of_config(config)
    report = str(kept.get(REPORT_KEY, ""))
    if kept.get(SOURCE_KEY) != source_of(spec) or not is_report(report):
        return None
    read = json.loads(report)
    found = of_config(read["config"])
    found = found._replace(size=_size(read, found.shape))
    again = f"; if its files were replaced, delete ConfigMap {map_name(service)}"
    return found._replace(unserved=found.unserved + again) if found.unserved else found


def _size(report: Mapping[str, Any], shape: Model | None) -> int:
    """Returns the bytes of the files; 0 if they were not counted. Of compressed layers, that is less than the weights may need."""
    counted = size if isinstance(size := report.get("bytes"), int) else 0
    return max(counted, shape.weight_bytes("bf16")) if report.get("compressed") and shape else counted


def of_config(config: dict[str, Any]) -> Inspection:
    """Returns what a config.json says."""
    if why := unserved(config):
        return Inspection(unserved=why)
    try:
        shape = parse_model(config)
    except SizingError as refused:
        return Inspection(unknowable=f"the model cannot be sized: {refused}")
    return Inspection(unserved=why) if (why := misshapen(shape)) else Inspection(shape)
