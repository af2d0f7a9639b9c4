"""The first requests of a process come at once, each on a thread of its own."""

import subprocess
import sys

import pytest

# Without the endpoints' own first look at their types every second run ended by SIGSEGV.
FIRST = """
import sys, threading
from pagoda_daemon.api.routes import embeddings
from pagoda_daemon.api.routes import completions, messages
from pagoda_daemon.api.openai import fields, requests
from pagoda_daemon.api.responses.requests import ResponsesRequest
from pagoda_daemon.api.routes import responses, texts
if "unlearned" in sys.argv:
    fields.learn = lambda kind: None
made = (
    (completions.Generate(requests.ChatRequest, None, None, None, ()), b'{"model": "m", "messages": [{"role": "user", "content": "x"}]}'),
    (completions.Generate(requests.CompletionRequest, None, None, None, ()), b'{"model": "m", "prompt": "x"}'),
    (responses.Respond(ResponsesRequest, None, None, None, ()), b'{"model": "m", "input": [{"role": "user", "content": "x"}]}'),
    (texts.TextRoute(texts.TokenizeRequest, None, None, None, ()), b'{"prompt": "x"}'),
    (embeddings.Embed(None, None, ()), b'{"model": "m", "input": "x"}'),
    (messages.CreateMessage(messages.MessagesRequest, None, None, None, ()), b'{"model": "m", "max_tokens": 1, "messages": []}'),
)
start, parsed = threading.Barrier(16), []
def ask(body, kind):
    start.wait()
    parsed.append(fields.typed(body, kind, []))
sys.setswitchinterval(1e-6)
for endpoint, body in made:
    kind = getattr(endpoint, "kind", embeddings.EmbeddingRequest)
    threads = [threading.Thread(target=ask, args=(body, kind)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(len(parsed))
"""


@pytest.mark.deep
def test_first_requests_on_threads_of_their_own_end_no_process():
    done = subprocess.run([sys.executable, "-P", "-c", FIRST], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "96\n"), done.stderr[-1000:]
