"""How a call is laid out around the JSON of its arguments, for the grammar that enforces calls. Pure data."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

NAME = "\0"  # stands for the function's name


@dataclass(frozen=True)
class Values:
    """Arguments that are no JSON object: each stands between `before`, which has its name, and `after`; `between` two of them. `text`: a
    string is written as it is; else each value is JSON. `name`: what the name of an argument may be."""

    before: str
    after: str
    between: str
    text: bool
    name: re.Pattern[str]


@dataclass(frozen=True)
class Layout:
    """`begin` stands before the first call, `between` between two, `end` behind the last one; `head` and `tail` around a call's arguments.
    `mark` is what calls begin with and other text does not have; empty if calls are the whole answer. `quoted`: the name is a JSON string.
    `single`: the form has one call only. `values`: how arguments are laid out that are no JSON object."""

    mark: str
    head: str
    tail: str = ""
    begin: str = ""
    between: str = ""
    end: str = ""
    quoted: bool = True
    single: bool = False
    values: Values | None = None

    def head_of(self, name: str) -> str:
        return self.head.replace(NAME, json.dumps(name) if self.quoted else name)
