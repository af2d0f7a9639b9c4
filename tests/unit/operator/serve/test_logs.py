"""Every line on the operator's stderr is one JSON object, whoever wrote it and from whatever thread."""

import json
import subprocess
import sys

TWO_WRITERS = """
import logging, threading, structlog
from pagoda_operator.__main__ import configure_logs

configure_logs()
configure_logs(logging.DEBUG)

def library():
    log = logging.getLogger("kopf")
    for i in range(3000):
        log.warning("Request attempt #%d failed", i)
    log.info("not said")
    try:
        raise OSError("away")
    except OSError:
        log.exception("ended")

thread = threading.Thread(target=library)
thread.start()
for i in range(3000):
    structlog.get_logger().debug("ours", number=i)
thread.join()
"""


def test_log_lines_of_ours_and_of_libraries_never_mix():
    text = subprocess.run([sys.executable, "-P", "-c", TWO_WRITERS], capture_output=True, text=True, check=True, timeout=300).stderr
    reported = [json.loads(line) for line in text.splitlines()]
    ours = [line for line in reported if line["event"] == "ours"]
    theirs = [line for line in reported if line.get("logger") == "kopf"]
    assert [line["number"] for line in ours] == list(range(3000))
    assert [line["event"] for line in theirs] == [*(f"Request attempt #{i} failed" for i in range(3000)), "ended"]
    assert {line["level"] for line in theirs} == {"warning", "error"}
    assert "OSError: away" in theirs[-1]["exception"]
    assert all("timestamp" in line for line in reported)
