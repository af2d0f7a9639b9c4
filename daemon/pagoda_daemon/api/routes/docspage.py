"""The page /docs: the OpenAPI document as HTML for people. Pure; served by `api/http/app.py`.

It is one file without a script and without anything from elsewhere, so its policy forbids everything but its own style.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping
from html import escape
from typing import Any, Final

from pagoda_daemon.api.routes.apidoc import described, in_requests

_STYLE: Final = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font-family: ui-monospace, monospace; font-size: 0.9em; }
pre { padding: 0.75rem; overflow-x: auto; border: 1px solid #8885; border-radius: 6px; }
summary { cursor: pointer; padding: 0.3rem 0; }
table { border-collapse: collapse; width: 100%; margin: 0.5rem 0 1rem; }
th, td { text-align: left; vertical-align: top; padding: 0.25rem 0.75rem 0.25rem 0; border-bottom: 1px solid #8883; }
.method { display: inline-block; min-width: 3.5rem; font-weight: 600; text-transform: uppercase; }
.quiet { opacity: 0.75; }
"""
_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def page(document: Mapping[str, Any], prefix: str = "") -> str:
    """The whole page. `prefix`: the path under which a proxy offers the replica."""
    info, schemas = document["info"], document["components"]["schemas"]
    read = in_requests(document)
    operations = [(path, method, one) for path, methods in document["paths"].items() for method, one in methods.items()]
    parts = [
        f"<h1>{escape(info['title'])} <span class=quiet>{escape(info['version'])}</span></h1>",
        f"<p>{escape(info['description'])} The same for programs: <a href=openapi.json>openapi.json</a>.</p>",
        f"<pre>{escape(_example(prefix))}</pre>",
        "<h2>Routes</h2>",
        *(_operation(prefix + path, method, one) for path, method, one in operations),
        "<h2>Types</h2>",
        *(_schema(name, schema, name in read) for name, schema in sorted(schemas.items())),
    ]
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{escape(info['title'])}</title>"
    return f"<!doctype html><html lang=en><head>{head}<style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"


def _example(prefix: str) -> str:
    body = '{"model": "NAME", "messages": [{"role": "user", "content": "Hello"}]}'
    return f"curl ADDRESS{prefix}/v1/chat/completions -H 'content-type: application/json' \\\n  -d '{body}'"


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    line = f"<span class=method>{escape(method)}</span> <code>{escape(path)}</code> <span class=quiet>{escape(operation['summary'])}</span>"
    body = "".join(f"<p>Body: {link}</p>" for link in _links(operation.get("requestBody", {}).get("content", {})))
    rows = (
        (f"<code>{escape(status)}</code>", escape(answer["description"]), ", ".join(_links(answer.get("content", {}))))
        for status, answer in operation["responses"].items()
    )
    return f"<details><summary>{line}</summary>{body}{_table(('status', 'when', 'answer'), rows)}</details>"


def _links(content: Mapping[str, Any]) -> list[str]:
    """To the types that a body may be."""
    schemas = [media.get("schema", {}) for media in content.values()]
    names = [one.get("$ref", one.get("contentSchema", {}).get("$ref", "")).rpartition("/")[2] for one in schemas]
    return [f"<a href='#{escape(name)}'>{escape(name)}</a>" for name in dict.fromkeys(names) if name]


def _schema(name: str, schema: Mapping[str, Any], request: bool) -> str:
    rows = (
        (f"<code>{escape(field)}</code>", *(escape(word) for word in described(field, schema, kind, request)))
        for field, kind in schema.get("properties", {}).items()
    )
    table = _table(("field", "type", ""), rows)
    return f"<h3 id='{escape(name)}'>{escape(name)}</h3><p>{escape(schema.get('description', ''))}</p>{table}"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Cells are HTML already."""
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{body}</table>"
