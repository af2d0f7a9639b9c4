"""chat.py with the real OpenAI client against a server that speaks the gateway's half of the wire."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import chat
import pytest
from pagoda_contracts.names import HEADER_ROUTE

ROUTE = "endpoint=10.1.0.7:8000; reason=least-loaded; held_ms=0; attempt=1"


class Gateway(BaseHTTPRequestHandler):
    """Streams the question's words back, or refuses."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append(body)
        if body["model"] != "llama-tiny":
            return self.answer(503, "application/json", json.dumps({"error": {"message": "nobody serves it"}}))
        words = [{"choices": [{"index": 0, "delta": {"content": word + " "}}]} for word in body["messages"][0]["content"].split()]
        events = [json.dumps({"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "m", **word}) for word in words]
        return self.answer(200, "text/event-stream", "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]))

    def answer(self, status, kind, text):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header(HEADER_ROUTE, ROUTE)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        """Keeps stderr for the client."""


@pytest.fixture
def gateway():
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def run(gateway, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["chat.py", "--base-url", f"http://127.0.0.1:{gateway.server_port}/v1", *arguments])
    chat.main()


def test_the_answer_is_printed_and_then_the_route(gateway, monkeypatch, capsys):
    run(gateway, monkeypatch, "--question", "What is it?")
    assert capsys.readouterr().out == f"What is it? \n{HEADER_ROUTE}: {ROUTE}\n"
    assert gateway.asked[0]["stream"] is True
    assert gateway.asked[0]["temperature"] == 0


def test_a_refusal_is_shown_once_and_not_retried(gateway, monkeypatch):
    with pytest.raises(SystemExit, match="nobody serves it"):
        run(gateway, monkeypatch, "--model", "other")
    assert len(gateway.asked) == 1
