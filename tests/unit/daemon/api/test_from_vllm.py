"""docs/from-vllm.md against the code: each name in its tables is served, refused or absent as the table says."""

from __future__ import annotations

import argparse
import re
from functools import cache
from pathlib import Path

import pytest
from openai.types import completion_create_params as openai_completion
from openai.types.chat import completion_create_params as openai_chat
from pagoda_contracts import metrics
from pagoda_daemon.api.openai.fields import foreign
from pagoda_daemon.api.openai.requests import ChatRequest, CompletionRequest
from pagoda_daemon.api.routes.openapi import ADAPTER_OPERATIONS, OPERATIONS
from pagoda_daemon.process import stand_alone

PAGE = Path(__file__).parents[4] / "docs" / "from-vllm.md"
FIELDS = set(ChatRequest.__struct_fields__) | set(CompletionRequest.__struct_fields__)
OPENAI = {
    name
    for kind in (
        openai_chat.CompletionCreateParamsBase,
        openai_chat.CompletionCreateParamsStreaming,
        openai_completion.CompletionCreateParamsBase,
    )
    for name in kind.__annotations__
}
OURS_ALONE = {"top_n_sigma", "include_timing"}
ALWAYS_ZERO = {
    *(metrics.EXTERNAL_QUERIES.name, metrics.EXTERNAL_HITS.name, metrics.MM_QUERIES.name, metrics.MM_HITS.name),
    *(metrics.DRAFTS.name, metrics.DRAFT_TOKENS.name, metrics.ACCEPTED_TOKENS.name),
}


@cache
def table(section: str) -> dict[str, str]:
    """Each name of the first table of a section, and what stands beside it."""
    text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.+?`) \| (.+) \|$", text, re.MULTILINE)
    return {name: said for names, said in rows for name in re.findall(r"`([^`]+)`", names)}


def flags() -> set[str]:
    parser = argparse.ArgumentParser()
    stand_alone.add_flags(parser)
    return {option for action in parser._actions for option in action.option_strings} - set(stand_alone._REFUSED)


@pytest.mark.parametrize("flag", sorted(table("Flags")))
def test_a_flag_is_there_as_the_table_says(flag):
    said = table("Flags")[flag]
    if said.startswith("not built"):
        assert flag in stand_alone._REFUSED
    else:
        assert (flag in flags()) is said.startswith("same"), said
    for other in re.findall(r"`(--[a-z-]+)`", said):
        assert other in flags()


def test_every_flag_that_has_no_effect_yet_is_in_the_table():
    assert set(stand_alone._REFUSED) <= table("Flags").keys()


@pytest.mark.parametrize("field", sorted(table("Fields")))
def test_a_field_is_taken_as_the_table_says(field):
    said, apart = table("Fields")[field], foreign()
    if said.startswith("same"):
        assert field in FIELDS
    elif said.startswith("refused"):
        assert field in apart.neutral
        assert field not in FIELDS
    elif said.startswith("never"):
        assert field in apart.internal
    else:
        assert said.startswith("ignored")
        assert field not in FIELDS | apart.neutral.keys() | apart.internal


def test_every_field_that_openais_own_client_does_not_have_is_in_the_table():
    assert table("Fields").keys() >= FIELDS - OPENAI - OURS_ALONE
    assert all(f"`{name}`" in PAGE.read_text() for name in OURS_ALONE)


def test_an_endpoint_is_there_as_the_table_says():
    paths = {operation.path for operation in (*OPERATIONS, *ADAPTER_OPERATIONS)}
    assert {path: path in paths for path in table("Endpoints")} == {
        path: said.startswith("same") for path, said in table("Endpoints").items()
    }


def test_a_metric_is_there_as_the_table_says():
    documented = table("Metrics")
    ours = {metric.name for metric in metrics.DAEMON}
    assert {name for name, said in documented.items() if name.startswith("vllm:") and not said.startswith("none")} == {
        metric.name for metric in metrics.DAEMON_VLLM
    }
    assert {name for name, said in documented.items() if said == "always 0"} == ALWAYS_ZERO
    assert all((name in ours) is not said.startswith("none") for name, said in documented.items() if "*" not in name)
