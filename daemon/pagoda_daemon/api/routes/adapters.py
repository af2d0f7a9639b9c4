"""/v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them: bodies, sentences, types and status codes. For a daemon without an
operator; only if the configuration has `adapters`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pagoda_daemon.api.access.catalogue import Catalogue
from pagoda_daemon.api.openai import fields
from pagoda_daemon.api.openai.errors import JSON
from pagoda_daemon.api.routes.admission import Admission, admitted
from pagoda_daemon.api.routes.preparing import in_time
from pagoda_daemon.core.errors import AdapterMissing, AdapterRejected, AdapterTaken, BadRequest, Forbidden

INVALID_INPUT: Final = "InvalidUserInput"


class LoadAdapterRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /v1/load_lora_adapter. `lora_path` is absolute, or below `adapters.directory`, in which it must lie either way.
    `load_inplace` lets a name that is in use stand for the new files."""

    lora_name: str = ""
    lora_path: str = ""
    load_inplace: bool = False
    is_3d_lora_weight: bool = False


class UnloadAdapterRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """POST /v1/unload_lora_adapter. `lora_int_id` has no effect."""

    lora_name: str = ""
    lora_int_id: int | None = None


class AdapterErrorBody(msgspec.Struct, frozen=True):
    """vLLM's error object: `code` is the status. What is refused before the adapter is looked at has a word there, as elsewhere."""

    message: str
    type: str
    code: int | str | None
    param: str | None = None


class AdapterError(msgspec.Struct, frozen=True):
    """What a refusal holds."""

    error: AdapterErrorBody


@dataclass(frozen=True)
class AdapterRoute:
    """One endpoint: its request type, and what it does with one."""

    kind: type[Any]
    answer: Callable[[Any, Catalogue], Awaitable[Response]]
    admission: Admission
    catalogue: Catalogue

    def __post_init__(self) -> None:
        fields.learn(self.kind)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def work(body: bytes) -> None:
            state = scope["state"]
            reading = self.admission.preparing.run(len(body), lambda: fields.typed(body, self.kind, state["ignored"]))
            request = await in_time(state["caller"].terms.deadline_ms, reading)
            await (await self.answer(request, self.catalogue))(scope, receive, send)

        await admitted(self.admission, scope, receive, work)


async def load_adapter(request: LoadAdapterRequest, catalogue: Catalogue) -> Response:
    if not request.lora_name or not request.lora_path:
        return _refused(400, INVALID_INPUT, "Both 'lora_name' and 'lora_path' must be provided.")
    if request.is_3d_lora_weight:
        raise BadRequest("is_3d_lora_weight must be false: adapters of experts are not supported", "is_3d_lora_weight")
    if catalogue.config.directory is None:
        raise Forbidden("no adapter is loaded while the daemon runs, unless adapters.directory (--lora-dir) says where adapters may lie")
    try:
        await catalogue.load(request.lora_name, request.lora_path, in_place=request.load_inplace)
    except AdapterTaken as error:
        return _refused(400, INVALID_INPUT, str(error))
    except AdapterMissing as error:
        return _refused(404, "NotFoundError", str(error))
    except AdapterRejected as error:
        return _refused(400, "BadRequestError", str(error))
    return Response(f"Success: LoRA adapter '{request.lora_name}' added successfully.")


async def unload_adapter(request: UnloadAdapterRequest, catalogue: Catalogue) -> Response:
    if not request.lora_name:
        return _refused(400, INVALID_INPUT, "'lora_name' needs to be provided to unload a LoRA adapter.")
    if not catalogue.unload(request.lora_name):
        return _refused(404, "NotFoundError", f"The lora adapter '{request.lora_name}' cannot be found.")
    return Response(f"Success: LoRA adapter '{request.lora_name}' removed successfully.")


def _refused(status: int, kind: str, message: str) -> Response:
    return Response(msgspec.json.encode(AdapterError(AdapterErrorBody(message, kind, status))), status, media_type=JSON)
