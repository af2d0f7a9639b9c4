"""charts/pagoda/values.schema.json: what the chart's values may be, so that Helm refuses a misspelt one by its name.

Pure; `generate` writes it. `defaultProfile` is the ServingProfile's own schema: the two cannot drift.
"""

from __future__ import annotations

import json
from typing import Any, Final

from pagoda_contracts.crds.schema import structural
from pagoda_contracts.resources.profile import SERVING_PROFILE

PATH: Final = "charts/pagoda/values.schema.json"
Schema = dict[str, Any]

_BOOLEAN: Final[Schema] = {"type": "boolean"}
# As a profile's images: a name with a tag, a digest or both.
_IMAGE: Final[Schema] = {"type": "string", "pattern": "^[a-zA-Z0-9][a-zA-Z0-9./:@_-]*$", "minLength": 1, "maxLength": 512}
_REGISTRY: Final[Schema] = {"type": "string", "pattern": "^([a-zA-Z0-9][a-zA-Z0-9._-]*(:[0-9]+)?(/[a-zA-Z0-9._-]+)*/?)?$", "maxLength": 256}
# What the chart decides itself. YAML would have two keys of one name, of which the later one would count.
_POD: Final[Schema] = {
    "type": "object",
    "properties": dict.fromkeys(("containers", "volumes", "serviceAccountName", "automountServiceAccountToken"), False),
}
# 0: as many as there are replicas.
_GATEWAYS: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": 1000}
_PULL: Final[Schema] = {"enum": ["Always", "IfNotPresent", "Never"]}
_REPLICAS: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": 16}
# Helm's templates count with one unit: `pagoda.seconds`.
_DURATION: Final[Schema] = {"type": "string", "pattern": "^[0-9]{1,6}(s|m|h)$"}
_TENANT: Final[Schema] = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]{0,50}[a-z0-9])?$"}
_LABELS: Final[Schema] = {"type": "object", "additionalProperties": {"type": "string"}}
_QUANTITIES: Final[Schema] = {"type": "object", "additionalProperties": {"type": ["string", "number"]}}

_TARGETS: Final[Schema] = {
    "^[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?$": {
        "type": "object",
        "additionalProperties": False,
        "required": ["url", "secret"],
        "properties": {
            "url": {"type": "string", "pattern": "^https://[^/@?#\\s]+(/[^@?#\\s]*)?$"},
            "model": {"type": "string", "minLength": 1},
            "secret": {"type": "string", "minLength": 1},
            "key": {"type": "string", "minLength": 1},
            "ca": {"type": "string", "minLength": 1},
        },
    }
}

# namespace/name; addresses with a length, which the operator checks to the bit.
_ACCOUNTS: Final[Schema] = {"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9][-a-z0-9.]*/[a-z0-9][-a-z0-9.]*$"}}
_NAMESPACES: Final[Schema] = {"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}}
# By pattern of served names, in which `*` stands for any characters.
_RESERVED: Final[Schema] = {"^[A-Za-z0-9*][A-Za-z0-9._:/*-]{0,127}$": _NAMESPACES}
# The class's profile has its name, and `default` is the profile of the install without a class.
_CLASS: Final[Schema] = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$", "not": {"const": "default"}}
_NETWORKS: Final[Schema] = {"type": "array", "items": {"type": "string", "pattern": "^[0-9a-fA-F:.]+/[0-9]{1,3}$"}}


def text() -> str:
    """The file's content."""
    return json.dumps(schema(), indent=1) + "\n"


def schema() -> Schema:
    """The values' schema. `global` is open: a chart above this one puts values for others there."""
    profile = _strict(structural(SERVING_PROFILE.model)["properties"]["spec"])
    pull = profile["properties"]["imagePullSecrets"]
    about = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of charts/pagoda"}
    return about | _closed(
        {
            "global": {"type": "object", "properties": {"imageRegistry": _REGISTRY, "imagePullSecrets": pull}},
            "crds": _closed({"install": _BOOLEAN, "keep": _BOOLEAN}),
            "operator": _closed(
                _workload()
                | {
                    "flowSchema": _BOOLEAN,
                    "namespaces": _NAMESPACES,
                    "class": _CLASS,
                    "admissionPolicy": _closed({"enabled": {"enum": ["auto", True, False]}}),
                }
            ),
            "reservedNames": {"type": "object", "additionalProperties": False, "patternProperties": _RESERVED},
            "gateway": _closed(
                _workload()
                | {
                    "enabled": _BOOLEAN,
                    "holdTimeout": _DURATION,
                    "holdPingAfter": _DURATION,
                    "lameDuck": _DURATION,
                    "drainTimeout": _DURATION,
                    "accessLog": _BOOLEAN,
                    "tls": _closed({"secretName": {"type": "string"}}),
                    "tracing": _closed({"endpoint": {"type": "string", "pattern": "^(https?://.+)?$"}}),
                    "auth": _closed({"anonymous": _BOOLEAN, "firstKey": _closed({"create": _BOOLEAN, "tenant": _TENANT})}),
                    "service": _closed({"type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]}}),
                    "keda": _closed({"enabled": _BOOLEAN}),
                    "extProc": _closed({"enabled": _BOOLEAN, "secret": {"type": "string"}, "open": _BOOLEAN, "tls": _BOOLEAN}),
                    "quota": _closed(
                        {"gateways": _GATEWAYS, "store": _closed({"secret": {"type": "string"}, "key": {"type": "string", "minLength": 1}})}
                    ),
                    "overflow": _closed({"targets": {"type": "object", "additionalProperties": False, "patternProperties": _TARGETS}}),
                    "usageLines": _BOOLEAN,
                }
            ),
            "auth": _closed({"enabled": _BOOLEAN, "metrics": _closed({"accounts": _ACCOUNTS, "networks": _NETWORKS})}),
            "networkPolicy": _closed({"enabled": _BOOLEAN, "proxies": _NAMESPACES}),
            "defaultProfile": profile,
            "monitoring": _closed(
                {
                    "serviceMonitor": _closed({"enabled": _BOOLEAN, "namespaces": _NAMESPACES, "interval": _DURATION, "labels": _LABELS}),
                    "prometheusRule": _closed({"enabled": _BOOLEAN, "labels": _LABELS}),
                    "dashboard": _closed({"enabled": _BOOLEAN, "labels": _LABELS}),
                }
            ),
        }
    )


def _workload() -> Schema:
    resources = _closed({"requests": _QUANTITIES, "limits": _QUANTITIES})
    return {"image": _IMAGE, "imagePullPolicy": _PULL, "replicas": _REPLICAS, "resources": resources, "pod": _POD}


def _closed(properties: Schema) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _strict(part: Schema) -> Schema:
    """A structural schema as a plain one that takes no unknown field: the API server would prune it in silence here."""
    kept = {word: value for word, value in part.items() if not word.startswith("x-kubernetes-") and word != "default"}
    if part.get("x-kubernetes-int-or-string"):
        kept["type"] = ["integer", "string"]
    if "properties" in part:
        kept |= {"additionalProperties": False, "properties": {name: _strict(below) for name, below in part["properties"].items()}}
    for word in ("items", "additionalProperties"):
        if isinstance(part.get(word), dict):
            kept[word] = _strict(part[word])
    return kept
