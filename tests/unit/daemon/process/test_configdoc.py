"""docs/daemon-config.md: every field of a DaemonConfig and every flag of `serve` is on it, and it is what the code says."""

from __future__ import annotations

import argparse
from pathlib import Path

from pagoda_daemon.process import configdoc, stand_alone

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs/daemon-config.md"


def test_the_page_is_up_to_date_and_a_change_is_noticed(tmp_path, capsys):
    assert configdoc.main(["--check", str(PAGE)]) == 0
    stale = tmp_path / "stale.md"
    stale.write_text(PAGE.read_text().replace("`engine.blockSize`", "`engine.blocksize`"))
    assert configdoc.main(["--check", str(stale)]) == 1
    assert "is out of date" in capsys.readouterr().err


def test_every_field_says_what_it_means():
    rows = list(configdoc.fields())
    assert len(rows) > 50
    assert [row.path for row in rows if not row.field.description] == []
    assert {"listen.tls.certFile", "testing.faults[].atStep", "drainTimeout"} <= {row.path for row in rows}


def test_every_flag_is_on_the_page():
    parser = argparse.ArgumentParser()
    stand_alone.add_flags(parser)
    shown = [option for action in parser._actions if action.help != argparse.SUPPRESS for option in action.option_strings]
    options = {option for option in shown if option.startswith("--") and option not in ("--help", "--no-enable-prefix-caching")}
    text = PAGE.read_text()
    assert {option for option in options if f"`{option}`" not in text} == set()


def test_every_flag_names_a_field():
    assert {flag.field for flag in stand_alone.FLAGS} | configdoc._FIELDS.keys() <= {row.path for row in configdoc.fields()}
