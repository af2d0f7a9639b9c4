"""Between Envoy's messages (contracts, extproc.proto) and the events of phases.py. Pure; called by session.py and answer.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from multidict import CIMultiDict
from pagoda_contracts.names import HEADER_DESTINATION, METADATA_LB, METADATA_SERVED, METADATA_SUBSET, METADATA_SUBSET_HINT
from pagoda_contracts.pb import extproc_pb2 as pb

from pagoda_gateway.extproc.phases import Chunk, Event, Head, Piece, Side, Trailers
from pagoda_gateway.requests.dialects import Reply
from pagoda_gateway.requests.errors import ProxyMisconfigured

_OVERWRITE: Final = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
# The gateway answers for these, whatever a client or a replica wrote.
_FRAMING: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "te", "trailer", "date", "server"})


class Changes(NamedTuple):
    """What becomes of a message's headers."""

    put: Mapping[str, str]
    drop: Iterable[str] = ()


def event_of(message: pb.ProcessingRequest) -> Event:
    """Returns what Envoy reports; ProxyMisconfigured if it is nothing that this processor knows."""
    kind = message.WhichOneof("request") or ""
    side = Side.REQUEST if kind.startswith("request") else Side.ANSWER
    if kind.endswith("headers"):
        head = message.request_headers if side is Side.REQUEST else message.response_headers
        return Head(side, _headers(head.headers), head.end_of_stream)
    if kind.endswith("body"):
        part = message.request_body if side is Side.REQUEST else message.response_body
        return Piece(side, part.body, part.end_of_stream)
    if kind.endswith("trailers"):
        return Trailers(side)
    raise ProxyMisconfigured("a message of Envoy has no headers, body or trailers")


def _headers(sent: pb.HeaderMap) -> CIMultiDict[str]:
    """Envoy sends raw bytes, or text if it is configured so."""
    return CIMultiDict((one.key, one.value or one.raw_value.decode(errors="surrogateescape")) for one in sent.headers)


def served_by(message: pb.ProcessingRequest) -> str:
    """Returns the address to which Envoy sent the request, "" if it does not say."""
    metadata = message.metadata_context.filter_metadata
    return metadata[METADATA_LB].fields[METADATA_SERVED].string_value if METADATA_LB in metadata else ""


def subset_of(message: pb.ProcessingRequest) -> frozenset[str] | None:
    """Returns the addresses among which the picker may choose, None for all. Envoy writes a list, or text with commas."""
    metadata = message.metadata_context.filter_metadata
    if METADATA_SUBSET_HINT not in metadata or METADATA_SUBSET not in metadata[METADATA_SUBSET_HINT].fields:
        return None
    value = metadata[METADATA_SUBSET_HINT].fields[METADATA_SUBSET]
    several = [one.string_value for one in value.list_value.values] or value.string_value.split(",")
    return frozenset(one.strip() for one in several if one.strip())


def refused_mode(message: pb.ProcessingRequest) -> str:
    """Returns the name of a body mode of Envoy's in which this processor would lose bodies, "" if there is none. Old ones say no mode."""
    config = message.protocol_config
    modes = [("request_body_mode", config.request_body_mode, {pb.FULL_DUPLEX_STREAMED})]
    modes.append(("response_body_mode", config.response_body_mode, {pb.FULL_DUPLEX_STREAMED, pb.NONE}))
    wrong = [f"{name} {pb.BodySendMode.Name(mode)}" for name, mode, known in modes if mode not in known]
    return ", ".join(wrong) if message.HasField("protocol_config") else ""


def plain(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Returns a message's headers without pseudo-headers."""
    return CIMultiDict((name, value) for name, value in headers.items() if not name.startswith(":"))


def changes(before: CIMultiDict[str], after: CIMultiDict[str]) -> Changes:
    """Returns what makes the headers `before` into `after`. Those that frame a message on its connection are Envoy's."""
    names = {name.lower() for name in before} - _FRAMING
    put = {name: value for name, value in after.items() if before.getall(name, []) != after.getall(name)}
    return Changes(put, sorted(name for name in names if name not in after))


def routed(destination: str, edits: Changes) -> pb.ProcessingResponse:
    """The request's head: where it goes, as a header and as metadata, because proxies read the one or the other."""
    response = pb.CommonResponse(header_mutation=_mutation(edits._replace(put={**edits.put, HEADER_DESTINATION: destination})))
    response.clear_route_cache = True
    made = pb.ProcessingResponse(request_headers=pb.HeadersResponse(response=response))
    made.dynamic_metadata.update({METADATA_LB: {HEADER_DESTINATION: destination}})
    return made


def answered(edits: Changes) -> pb.ProcessingResponse:
    """The answer's head."""
    response = pb.CommonResponse(header_mutation=_mutation(edits))
    return pb.ProcessingResponse(response_headers=pb.HeadersResponse(response=response))


def bodies(side: Side, several: Iterable[Chunk]) -> Iterator[pb.ProcessingResponse]:
    """Parts of a body."""
    for chunk in several:
        streamed = pb.StreamedBodyResponse(body=chunk.data, end_of_stream=chunk.end)
        part = pb.BodyResponse(response=pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=streamed)))
        yield pb.ProcessingResponse(request_body=part) if side is Side.REQUEST else pb.ProcessingResponse(response_body=part)


def trailers(side: Side) -> pb.ProcessingResponse:
    """Trailers pass as they came."""
    same = pb.TrailersResponse()
    return pb.ProcessingResponse(request_trailers=same) if side is Side.REQUEST else pb.ProcessingResponse(response_trailers=same)


def immediate(reply: Reply, more: Mapping[str, str]) -> pb.ProcessingResponse:
    """An answer that Envoy gives by itself."""
    status = pb.HttpStatus(code=reply.status)
    headers = _mutation(Changes({**reply.headers, **more}))
    answer = pb.ImmediateResponse(status=status, headers=headers, body=reply.body, details="pagoda_gateway")
    return pb.ProcessingResponse(immediate_response=answer)


def _mutation(edits: Changes) -> pb.HeaderMutation:
    put = [
        pb.HeaderValueOption(header=pb.HeaderValue(key=name.lower(), raw_value=value.encode()), append_action=_OVERWRITE)
        for name, value in edits.put.items()
    ]
    return pb.HeaderMutation(set_headers=put, remove_headers=list(edits.drop))
