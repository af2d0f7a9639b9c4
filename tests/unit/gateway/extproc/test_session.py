"""One request through Envoy, as the gateway sees it: a stream of Envoy's messages, and what goes back."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_contracts.gateway_metrics import GATEWAY_TOKENS
from pagoda_contracts.names import HEADER_DESTINATION, HEADER_ROUTE, METADATA_LB, METADATA_SERVED, METADATA_SUBSET, METADATA_SUBSET_HINT
from pagoda_contracts.pb import extproc_pb2 as pb
from pagoda_contracts.resources.apikeys import new_key
from pagoda_contracts.resources.tenant import TenantQuotaSpec
from pagoda_gateway.extproc.phases import CHUNK_BYTES
from pagoda_gateway.extproc.session import Picker, Session
from pagoda_gateway.limits.registry import Subject
from pagoda_gateway.proxy.authenticate import Authenticate
from pagoda_gateway.proxy.body import Limits
from pagoda_gateway.requests.errors import ProxyMisconfigured
from pagoda_gateway.watch.quotas import rule_of
from pagoda_gateway.watch.services import Replica
from prometheus_client.parser import text_string_to_metric_families
from support.harness.gateway import GatewayHarness
from support.suite.profiles import examples

KEY = new_key(b"k" * 32, datetime(2026, 1, 1, tzinfo=UTC))
BODY = json.dumps({"model": "m", "prompt": "x", "max_tokens": 5}).encode()
FULL = pb.ProtocolConfiguration(request_body_mode=pb.FULL_DUPLEX_STREAMED, response_body_mode=pb.FULL_DUPLEX_STREAMED)


def header_map(**headers: str) -> pb.HeaderMap:
    wire = {name.replace("__", ":").replace("_", "-"): value for name, value in headers.items()}
    return pb.HeaderMap(headers=[pb.HeaderValue(key=name, raw_value=value.encode()) for name, value in wire.items()])


def head(*, end: bool = False, **headers: str) -> pb.ProcessingRequest:
    fields = header_map(**({"__method": "POST", "__path": "/v1/completions"} | headers))
    return pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=fields, end_of_stream=end), protocol_config=FULL)


def piece(data: bytes = BODY, *, end: bool = True) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=data, end_of_stream=end))


def answer(*, status: int = 200, end: bool = False, **headers: str) -> pb.ProcessingRequest:
    fields = header_map(**({"__status": str(status), "content_type": "application/json"} | headers))
    return pb.ProcessingRequest(response_headers=pb.HttpHeaders(headers=fields, end_of_stream=end))


def part(data: bytes = b"{}", *, end: bool = True) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=data, end_of_stream=end))


def metadata(namespace: str, **values: Any) -> pb.Metadata:
    made = pb.Metadata()
    made.filter_metadata[namespace].update({name.replace("_", "-"): value for name, value in values.items()})
    return made


@dataclass
class Stream:
    """What goes back to Envoy. A callable among the messages is called when it is its turn."""

    messages: tuple[Any, ...]
    sent: list[pb.ProcessingResponse] = field(default_factory=list)

    async def requests(self) -> Any:
        for message in self.messages:
            if callable(message):
                message()
            else:
                yield message

    async def write(self, message: pb.ProcessingResponse) -> None:
        self.sent.append(message)

    @property
    def kinds(self) -> list[str]:
        return [message.WhichOneof("response") for message in self.sent]

    @property
    def immediate(self) -> pb.ImmediateResponse:
        assert self.kinds == ["immediate_response"], self.sent
        return self.sent[0].immediate_response

    def put(self, kind: str = "request_headers") -> dict[str, str]:
        """The headers that Envoy sets."""
        if kind == "immediate":
            mutation = self.immediate.headers
        else:
            mutation = next(getattr(one, kind) for one in self.sent if one.WhichOneof("response") == kind).response.header_mutation
        return {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}

    def dropped(self, kind: str = "request_headers") -> list[str]:
        """The headers that Envoy removes."""
        changed = next(getattr(one, kind) for one in self.sent if one.WhichOneof("response") == kind)
        return list(changed.response.header_mutation.remove_headers)

    def body(self, kind: str) -> tuple[bytes, list[bool]]:
        """A body as it goes on, and which of its chunks end it."""
        parts = [getattr(one, kind).response.body_mutation.streamed_response for one in self.sent if one.WhichOneof("response") == kind]
        assert all(len(one.body) <= CHUNK_BYTES for one in parts)
        return b"".join(one.body for one in parts), [one.end_of_stream for one in parts]


class Harness(GatewayHarness):
    """Two ready replicas of the model m, a and b."""

    def __init__(self, *, anonymous: bool = True, replicas: tuple[str, ...] = ("a", "b")) -> None:
        super().__init__()
        self.service()
        self.synced()
        for name in replicas:
            self.frame(name=f"ns/{name}", address=f"10.0.0.{name}:8000")
        self.ring.put("s", "acme", {KEY.id: KEY.stored})
        self.authenticate = Authenticate(self.ring, self.metrics, lambda: datetime(2026, 1, 1, tzinfo=UTC), anonymous=anonymous)

    async def ask(self, *messages: Any, hold_s: float = 0.0) -> Stream:
        parts = self.cache, self.in_flight, self.router, Limits(1 << 20, 60), self.authenticate, self.observe, self.limiter, self.usage
        stream = Stream(messages)
        await Session(Picker(*parts, None, hold_s), stream.requests(), stream.write).run()
        assert self.in_flight.count == 0
        assert self.budget.used == 0
        assert [endpoint.in_flight for endpoint in self.endpoints()] == [0] * len(self.endpoints())
        return stream

    def endpoints(self) -> list[Any]:
        return self.cache.endpoints(self.cache.service("ns/s"))

    def load(self) -> dict[str, int]:
        return {endpoint.address: endpoint.in_flight for endpoint in self.endpoints()}

    def pass_ms(self, ms: int) -> None:
        self.now_ms += ms

    def limit(self, **spec: Any) -> None:
        subjects = {"subjects": {"apiKeysSecretRef": {"namespace": "any", "name": "pagoda-keys-acme"}}}
        self.registry.put("q", Subject("any", "pagoda-keys-acme"), rule_of("q", TenantQuotaSpec.model_validate(subjects | spec)))


async def test_the_replica_that_was_picked_stands_in_a_header_and_in_metadata():
    stream = await Harness().ask(head(x_request_id="mine", x_pagoda_tenant="other", authorization="Bearer k"), piece(), answer(), part())
    assert stream.kinds == ["request_headers", "request_body", "response_headers", "response_body"]
    destination = stream.put()[HEADER_DESTINATION]
    assert destination in ("10.0.0.a:8000", "10.0.0.b:8000")
    assert json.loads(pb_json(stream.sent[0].dynamic_metadata)) == {METADATA_LB: {HEADER_DESTINATION: destination}}
    assert stream.dropped() == ["authorization", "x-pagoda-tenant"]
    assert stream.put("response_headers")[HEADER_ROUTE].startswith(f"endpoint={destination}; reason=least-loaded;")
    assert stream.put("response_headers")["x-request-id"] == "mine"


def pb_json(message: Any) -> str:
    from google.protobuf.json_format import MessageToJson

    return MessageToJson(message)


@pytest.mark.deep
@settings(max_examples=examples(50))
@given(
    sizes=st.lists(st.integers(0, 2 * CHUNK_BYTES), max_size=3),
    trailers=st.booleans(),
    answers=st.lists(st.binary(max_size=40), max_size=4),
    sse=st.booleans(),
    ends=st.sampled_from(["piece", "trailers", "head"]),
)
def test_bodies_pass_whole_in_both_directions_and_each_ends_once(sizes, trailers, answers, sse, ends):
    pad = [b" " * size for size in sizes]
    pieces = [piece(data, end=False) for data in [BODY, *pad]]
    end = pb.ProcessingRequest(request_trailers=pb.HttpTrailers()) if trailers else piece(b"", end=True)
    kind = {"content_type": "text/event-stream"} if sse else {}
    back = [] if ends == "head" else [part(data, end=False) for data in answers]
    last = {"piece": [part(b"", end=True)], "trailers": [pb.ProcessingRequest(response_trailers=pb.HttpTrailers())], "head": []}[ends]
    stream = asyncio.run(Harness().ask(head(), *pieces, end, answer(end=ends == "head", **kind), *back, *last))

    body, marks = stream.body("request_body")
    assert body == BODY + b"".join(pad)
    assert marks == [False] * (len(marks) - 1) + [not trailers]
    assert stream.kinds[0] == "request_headers"
    assert stream.kinds.count("request_trailers") == trailers
    passed, marks = stream.body("response_body")
    assert passed == (b"" if ends == "head" else b"".join(answers))
    assert sum(marks) == (ends == "piece")
    assert stream.kinds.count("response_trailers") == (ends == "trailers")
    order = ["request_headers", "request_body", "request_trailers", "response_headers", "response_body", "response_trailers"]
    assert stream.kinds == sorted(stream.kinds, key=order.index)


@pytest.mark.parametrize(
    ("messages", "status", "code"),
    [
        ([head(__path="/v1/other"), piece()], 404, "not_found"),
        ([head(__method="GET", end=True)], 405, "method_not_allowed"),
        ([head(content_encoding="gzip"), piece()], 415, "unsupported_encoding"),
        ([head(content_length=str(2 << 20)), piece()], 413, "request_too_large"),
        ([head(), piece(bytes(2 << 20), end=False)], 413, "request_too_large"),
        ([head(), piece(b"no JSON")], 400, "invalid_value"),
        ([head(end=True)], 400, "invalid_value"),
        ([head(), piece(b'{"model": "another"}')], 404, "model_not_found"),
    ],
)
async def test_a_request_that_is_wrong_is_answered_at_once_with_our_error(messages, status, code):
    stream = await Harness().ask(*messages)
    assert (stream.immediate.status.code, json.loads(stream.immediate.body)["error"]["code"]) == (status, code)
    assert stream.put("immediate")["x-should-retry"] == "false"
    assert len(stream.put("immediate")["x-request-id"]) == 32


async def test_without_a_key_nothing_of_the_body_is_read():
    def never() -> None:
        raise AssertionError("the body was read")

    stream = await Harness(anonymous=False).ask(head(), never)
    assert (stream.immediate.status.code, json.loads(stream.immediate.body)["error"]["code"]) == (401, "invalid_api_key")
    stream = await Harness(anonymous=False).ask(head(authorization=f"Bearer {KEY.text}"), piece(), answer(end=True))
    assert stream.put()["x-pagoda-tenant"] == "acme"


async def test_without_a_ready_replica_the_answer_is_503_and_says_when_to_come_back():
    harness = Harness(replicas=())
    stream = await harness.ask(head(), piece(), hold_s=0.01)
    assert (stream.immediate.status.code, json.loads(stream.immediate.body)["error"]["code"]) == (503, "no_ready_endpoint")
    assert stream.put("immediate")["retry-after"] == "10"
    anthropic = await harness.ask(head(__path="/v1/messages"), piece(), hold_s=0.01)
    assert json.loads(anthropic.immediate.body)["error"]["type"] == "overloaded_error"


async def test_a_request_waits_a_little_and_is_counted_as_held_meanwhile():
    harness = Harness(replicas=())
    asked = asyncio.create_task(harness.ask(head(), piece(), answer(end=True), hold_s=300))
    await harness.until(lambda: harness.queue.count("ns/s") == 1)
    harness.frame(name="ns/a", address="10.0.0.a:8000")
    stream = await asked
    assert stream.put()[HEADER_DESTINATION] == "10.0.0.a:8000"
    assert "reason=held-no-replica" in stream.put("response_headers")[HEADER_ROUTE]


async def test_a_quota_reserves_refuses_and_is_charged_what_the_answer_says():
    harness = Harness()
    harness.limit(limits=[{"window": "720h", "tokens": 1000}])
    key = {"authorization": f"Bearer {KEY.text}"}
    usage = answer(x_pagoda_usage="7 0 5")
    stream = await harness.ask(head(**key), piece(), usage, part())
    reserved = int(stream.put()["x-pagoda-reserved-tokens"])
    assert reserved == len(BODY) + 256 + 5
    assert stream.put()["x-pagoda-report-usage"] == "true"
    assert stream.put("response_headers")["x-ratelimit-remaining-tokens"] == str(1000 - reserved)
    assert stream.dropped("response_headers") == ["x-pagoda-usage"]

    stream = await harness.ask(head(**key), piece(json.dumps({"model": "m", "prompt": "x", "max_tokens": 800}).encode()))
    assert (stream.immediate.status.code, json.loads(stream.immediate.body)["error"]["code"]) == (429, "rate_limit_exceeded")
    assert stream.put("immediate")["x-ratelimit-remaining-tokens"] == str(1000 - 12)


async def test_a_stream_is_charged_by_its_comments_which_its_client_does_not_see():
    harness = Harness()
    harness.limit(limits=[{"window": "720h", "tokens": 1000}])
    key = {"authorization": f"Bearer {KEY.text}"}
    sse = answer(content_type="text/event-stream", x_pagoda_continuable="no")
    events = [b"data: 1\n\n: pagoda more 7 0 1\n\ndata: 2\n\n: pago", b"da over 7 0 2\n\n", b""]
    stream = await harness.ask(head(**key), piece(), sse, *[part(data, end=data == b"") for data in events])
    assert stream.body("response_body")[0] == b"data: 1\n\ndata: 2\n\n"
    stream = await harness.ask(head(**key), piece(), answer(end=True))
    assert int(stream.put("response_headers")["x-ratelimit-remaining-tokens"]) == 1000 - 9 - (len(BODY) + 256 + 5)


async def test_usage_names_the_adapter_and_the_class():
    harness = Harness(replicas=("a",))
    harness.service(model="pirate")
    [endpoint] = harness.endpoints()
    endpoint.frame = endpoint.frame._replace(served_names=frozenset({"m"}), adapters=frozenset({"pirate"}))
    asked = json.dumps({"model": "pirate", "prompt": "x", "service_tier": "flex"}).encode()
    await harness.ask(head(authorization=f"Bearer {KEY.text}"), piece(asked), answer(x_pagoda_usage="7 4 5"), part())
    samples = [one for family in text_string_to_metric_families(harness.metrics.exposition().decode()) for one in family.samples]
    counted = [one for one in samples if one.name == "pagoda_gateway_tokens_total"]
    found = {tuple(one.labels[name] for name in GATEWAY_TOKENS.labels): one.value for one in counted}
    who = ("acme", KEY.id, "ns/s", "pirate", "batch")
    assert found == {(*who, "prompt"): 3, (*who, "cached"): 4, (*who, "answer"): 5}


async def test_a_replica_that_refuses_is_not_picked_again_before_its_next_frame():
    harness = Harness()
    picked = []
    for _ in range(4):
        stream = await harness.ask(head(), piece(), answer(status=503, x_pagoda_error_code="draining"), part())
        picked.append(stream.put()[HEADER_DESTINATION] if stream.kinds[0] == "request_headers" else stream.immediate.status.code)
    assert sorted(picked[:2]) == ["10.0.0.a:8000", "10.0.0.b:8000"]
    assert picked[2:] == [503, 503]


async def test_the_request_counts_where_envoy_says_that_it_sent_it():
    harness = Harness()
    seen = []
    served = answer()
    stream = await harness.ask(head(), piece(), lambda: seen.append(harness.load()), answer(end=True))
    picked = stream.put()[HEADER_DESTINATION]
    [other] = {"10.0.0.a:8000", "10.0.0.b:8000"} - {next(address for address, count in seen[0].items() if count)}
    assert seen[0][picked] == 1
    served.metadata_context.MergeFrom(metadata(METADATA_LB, **{METADATA_SERVED.replace("-", "_"): picked}))
    stream = await harness.ask(head(), piece(), served, lambda: seen.append(harness.load()), part())
    assert (stream.put()[HEADER_DESTINATION], seen[1]) == (other, {picked: 1, other: 0})
    assert stream.put("response_headers")[HEADER_ROUTE] == f"endpoint={picked}; reason=repick-envoy; held_ms=0; attempt=2"


async def timed(harness, *messages):
    """How long requests take at each replica, after one more."""
    await harness.ask(head(), piece(), *messages)
    return {one.name: one.took_ms for one in harness.endpoints()}


async def test_an_answer_that_refuses_does_not_say_how_long_requests_take():
    """A short time would let more requests wait for a row there."""
    harness = Harness(replicas=("a",))
    assert await timed(harness, lambda: harness.pass_ms(2), answer(status=400), part()) == {"ns/a": 0}
    assert await timed(harness, lambda: harness.pass_ms(40), answer(), part()) == {"ns/a": 40}


async def test_a_replica_that_envoy_did_not_use_is_not_timed():
    harness = Harness(replicas=("a",))
    harness.cache.put_replica(Replica("ns/b", "ns/s", "", "10.0.0.b:8000", "", draining=False))
    served = answer()
    served.metadata_context.MergeFrom(metadata(METADATA_LB, **{METADATA_SERVED.replace("-", "_"): "10.0.0.b:8000"}))
    assert await timed(harness, lambda: harness.pass_ms(10), served, lambda: harness.pass_ms(30), part()) == {"ns/a": 0, "ns/b": 40}


@pytest.mark.parametrize(
    ("subset", "may"), [(["10.0.0.b:8000"], {"10.0.0.b:8000"}), ("10.0.0.a", {"10.0.0.a:8000"}), (["10.0.0.a:1"], {503}), ([], {503})]
)
async def test_only_replicas_of_the_subset_are_picked(subset, may):
    harness, found = Harness(), set()
    begun = head()
    begun.metadata_context.MergeFrom(metadata(METADATA_SUBSET_HINT, **{METADATA_SUBSET.replace("-", "_"): subset}))
    for _ in range(3):
        stream = await harness.ask(begun, piece(), answer(end=True))
        found.add(stream.put()[HEADER_DESTINATION] if stream.kinds[0] == "request_headers" else stream.immediate.status.code)
    assert found == may


async def test_a_client_that_leaves_is_counted_as_one_that_left():
    harness = Harness()
    for messages in ([head()], [head(), piece()], [head(), piece(), answer(), part(end=False)], [head(), answer(status=408, end=True)]):
        stream = await harness.ask(*messages)
        assert "immediate_response" not in stream.kinds
    families = text_string_to_metric_families(harness.metrics.exposition().decode())
    left = [one for family in families for one in family.samples if one.labels.get("code") == "499"]
    assert sum(one.value for one in left if one.name == "pagoda_gateway_requests_total") == 4


async def test_a_mode_in_which_bodies_would_be_lost_is_refused_with_its_name():
    begun = head()
    begun.protocol_config.request_body_mode = pb.BUFFERED
    stream = await Harness().ask(begun)
    assert stream.immediate.status.code == 500
    assert "request_body_mode BUFFERED" in json.loads(stream.immediate.body)["error"]["message"]


async def test_answers_whose_bodies_do_not_pass_the_picker_end_with_their_heads():
    harness, begun = Harness(), head()
    begun.protocol_config.response_body_mode = pb.NONE
    stream = await harness.ask(begun, piece(), answer())
    assert stream.kinds == ["request_headers", "request_body", "response_headers"]


async def test_messages_that_cannot_come_now_end_the_exchange_with_a_reason():
    harness = Harness()
    with pytest.raises(ProxyMisconfigured, match="request_header_mode"):
        await harness.ask(answer())
    with pytest.raises(ProxyMisconfigured, match="piece of the request came when all of it had come"):
        await harness.ask(head(), piece(), piece())
    for messages in ([head(), head()], [head(), pb.ProcessingRequest()]):
        assert json.loads((await harness.ask(*messages)).immediate.body)["error"]["code"] == "proxy_misconfigured"
