"""Every line on the operator's stderr is one JSON object, whoever wrote it and from whatever thread."""

import json
import os
import subprocess

from support.processes import spawner

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


def test_log_lines_of_ours_and_of_libraries_never_mix(tmp_path):
    (tmp_path / "writers.py").write_text(TWO_WRITERS)
    process = spawner.start("pagoda_operator", [str(tmp_path / "writers.py")], dict(os.environ), stderr=subprocess.PIPE)
    with process.stderr:
        text = process.stderr.read()
    assert process.wait(300) == 0
    reported = [json.loads(line) for line in text.splitlines()]
    ours = [line for line in reported if line["event"] == "ours"]
    theirs = [line for line in reported if line.get("logger") == "kopf"]
    assert [line["number"] for line in ours] == list(range(3000))
    assert [line["event"] for line in theirs] == [*(f"Request attempt #{i} failed" for i in range(3000)), "ended"]
    assert {line["level"] for line in theirs} == {"warning", "error"}
    assert "OSError: away" in theirs[-1]["exception"]
    assert all("timestamp" in line for line in reported)
