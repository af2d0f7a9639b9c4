"""The process that renders a model's chat template: reads frames, answers frames, ends with its input. Started by `templates` alone.

A template is a program from the model's directory. Here it may loop for ever or grow without bound: the process has so much CPU time per
rendering and so much memory, holds no secret, opens nothing, and is killed and started again when it exceeds them.
"""

from __future__ import annotations

import json
import math
import resource
import struct
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final

import jinja2
import msgspec
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from pagoda_daemon.core.errors import MAX_SHOWN

MAX_CPU_S: Final = 2
MAX_MEMORY: Final = 512 * 2**20  # of address space, beyond what the process has when it starts
HEADER: Final = struct.Struct("<I")


class Job(msgspec.Struct, frozen=True):
    """One rendering, with at most `most` characters; without variables the template is only compiled."""

    variables: dict[str, Any] | None
    most: int = 0


class Done(msgspec.Struct, frozen=True):
    """The text, or why there is none."""

    text: str = ""
    error: str | None = None
    too_long: bool = False


def environment() -> ImmutableSandboxedEnvironment:
    """Hugging Face's: the same trimming, filters and functions, in Jinja's sandbox."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
    made.filters["tojson"] = _tojson
    made.globals["raise_exception"] = _raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)  # noqa: DTZ005  no time zone, as in transformers: %Z is empty
    return made


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what a trainer learns from; when serving it is its body, with a scope of its own."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Callable[[], str]) -> str:
        return caller()


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """transformers' own, with its arguments in its order. Unlike Jinja's it does not escape HTML and does not sort keys by itself."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def render(template: jinja2.Template, variables: Mapping[str, Any], most: int) -> Done:
    """Stops at the first piece that is too much."""
    pieces, size = [], 0
    for piece in template.generate(**variables):
        size += len(piece)
        if size > most:
            return Done(too_long=True)
        pieces.append(piece)
    return Done("".join(pieces))


def attempt(source: str, compiled: list[jinja2.Template], job: Job) -> Done:
    try:
        if not compiled:
            compiled.append(environment().from_string(source))
        return Done() if job.variables is None else render(compiled[0], job.variables, job.most)
    except jinja2.TemplateError as error:
        return Done(error=str(error)[:MAX_SHOWN])
    except MemoryError:
        return Done(error="it needs too much memory")
    except Exception as error:  # noqa: BLE001  whatever a template does wrong is the template's
        return Done(error=f"{type(error).__name__}: {error}"[:MAX_SHOWN])


def _allow_cpu() -> None:
    """So much from now on; the kernel ends the process that takes more."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(spent.ru_utime + spent.ru_stime) + MAX_CPU_S, resource.RLIM_INFINITY))


def _confine() -> None:
    own = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (own + MAX_MEMORY, own + MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read(stream: BinaryIO) -> bytes | None:
    header = stream.read(HEADER.size)
    return stream.read(*HEADER.unpack(header)) if len(header) == HEADER.size else None


def main() -> None:
    """The first frame is the template, every other one a job."""
    frames, out = sys.stdin.buffer, sys.stdout.buffer
    _confine()
    source = _read(frames)
    if source is None:
        return
    compiled: list[jinja2.Template] = []
    while (frame := _read(frames)) is not None:
        _allow_cpu()
        answer = msgspec.msgpack.encode(attempt(source.decode(), compiled, msgspec.msgpack.decode(frame, type=Job)))
        out.write(HEADER.pack(len(answer)) + answer)
        out.flush()


if __name__ == "__main__":
    main()
