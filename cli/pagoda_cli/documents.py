"""YAML files as `kubectl` reads them, with the line of every field. Called by `validate`. Knows no object of ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pagoda_cli.errors import CliError

MAX_BYTES = 4 << 20
Steps = tuple[str | int, ...]


class Document(NamedTuple):
    """One object of a file: its value, the line of every field, and keys that stand twice."""

    value: Any
    lines: dict[Steps, int]
    twice: tuple[Steps, ...]

    def line(self, path: Steps) -> int:
        """The line of the field, or of the nearest thing around it where it is absent."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)


class _Loader(yaml.SafeLoader):
    """Dates stay text, as in kubectl."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def documents(name: str, text: str) -> Iterator[Document]:
    """The objects of a text, those inside a List one by one; CliError where it is no YAML."""
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is None:
                continue
            lines: dict[Steps, int] = {}
            twice: list[Steps] = []
            _walk(node, (), lines, twice)
            yield from _unpacked(Document(loader.construct_document(node), lines, tuple(twice)))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise CliError(f"{name}: no YAML: {error}") from None
    finally:
        loader.dispose()


def read(path: str, standard_input: str | None = None) -> str:
    """The file's text; `-` is standard input."""
    if path == "-" and standard_input is not None:
        return standard_input
    try:
        if Path(path).stat().st_size > MAX_BYTES:
            raise CliError(f"{path}: more than {MAX_BYTES >> 20} MiB")
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"{path}: {error}") from None


def _walk(node: yaml.Node, path: Steps, lines: dict[Steps, int], twice: list[Steps]) -> None:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*path, str(key.value))
            if below in lines:
                twice.append(below)
            lines[below] = key.start_mark.line + 1
            _walk(value, below, lines, twice)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(item, (*path, index), lines, twice)


def _unpacked(document: Document) -> Iterator[Document]:
    value = document.value
    if value is None:
        return
    if not (isinstance(value, dict) and value.get("kind") == "List" and isinstance(value.get("items"), list)):
        yield document
        return
    for index, item in enumerate(value["items"]):
        root: Steps = ("items", index)
        lines = {path[2:]: line for path, line in document.lines.items() if path[:2] == root}
        yield Document(item, lines, tuple(path[2:] for path in document.twice if path[:2] == root))
