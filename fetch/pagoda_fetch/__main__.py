"""Door of `pagoda-fetch`: command line → settings → fetch, inspect or the sidecar. Maps errors to exit codes, decides nothing else.

Exit codes: 0 done; 1 trying again may help; 78 no retry cures it. The reason is in the termination message either way.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, cast

import structlog
from pagoda_contracts.names import EXIT_PERMANENT

from pagoda_fetch.core.errors import FetchError, Permanent
from pagoda_fetch.serve.shown import StandardError

if TYPE_CHECKING:
    from pagoda_fetch.serve.settings import Settings

log = structlog.get_logger()
_MAX_REASON: Final = 2048  # bytes; kubelet keeps 4096 of a termination message


def main() -> None:
    """One command."""
    _log_to_stderr()
    try:
        from pagoda_fetch.serve import settings
    except ModuleNotFoundError as missing:
        sys.exit(f"pagoda-fetch: module {missing.name!r} is missing; install it in a checkout: pip install '.[fetch]'")
    message = settings.termination_log()
    try:
        output = asyncio.run(_run(settings.resolve(sys.argv[1:])))
    except FetchError as error:
        line = f"{error.reason}: {' '.join(str(error).split())}"
        log.error("failed", reason=error.reason, message=str(error))
        _leave(message, line.encode()[:_MAX_REASON])
        sys.exit(EXIT_PERMANENT if isinstance(error, Permanent) else 1)
    except KeyboardInterrupt:
        sys.exit(130)
    if output:
        sys.stdout.write(f"{output}\n")


async def _run(chosen: Settings) -> str:
    """What the command prints."""
    from pagoda_fetch.download import inspecting
    from pagoda_fetch.serve import shown, sidecar
    from pagoda_fetch.serve.service import Fetches
    from pagoda_fetch.volume.lock import myself
    from pagoda_fetch.volume.store import Store, point

    if chosen.command == "serve" or chosen.order is None:
        await sidecar.run(chosen)
        return ""
    if chosen.command == "inspect":
        output = inspecting.line(await inspecting.inspect(chosen.order, chosen.around))
        _leave(chosen.message_file, output.encode())
        return output
    fetches = Fetches(Store(chosen.root, chosen.limits.reserve), chosen.around, myself(chosen.pod))
    moments, name, console = fetches.watch(chosen.order), chosen.order.address.uri, shown.terminal()
    clock = asyncio.get_running_loop().time
    done = await (shown.in_log(moments, name, clock) if console is None else shown.on_terminal(moments, name, console))
    if chosen.link is not None:
        point(chosen.link, Path(done.path))
    return done.path


def _leave(message: Path | None, text: bytes) -> None:
    if message is not None:
        with suppress(OSError):  # a full disk: the exit code still says what to do
            message.write_bytes(text + b"\n")


def _log_to_stderr() -> None:
    """Standard output is the command's answer."""
    renderer = structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    stamps: list[structlog.typing.Processor] = [
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.add_log_level,
        structlog.processors.format_exc_info,
    ]
    structlog.configure(processors=[*stamps, renderer], logger_factory=structlog.WriteLoggerFactory(cast("TextIO", StandardError())))
    # Libraries' own lines may hold addresses with signatures in their query.
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)


if __name__ == "__main__":
    main()
