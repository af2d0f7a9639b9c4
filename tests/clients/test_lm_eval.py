"""lm-eval, as its users run it: its models that ask an API and the offline engine as one of its models, judged by its own model `hf`.

All four read the same tiny model in float32 and the same tasks: questions with four answers, texts for perplexity, and answers to be
generated. Every log-likelihood must be `hf`'s, not only what is counted from them.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from clients.conftest import TINY, api
from pydoc_answers import QA, TOPICS, questions
from support.engine.tiny_model import tiny_model
from support.servers.replica import Replica
from support.suite.environments import ROOT, run_in

pytestmark = [pytest.mark.clients, pytest.mark.timeout(1800)]

SUITE, SEED, CHOICES, TEXTS = "lm-eval", 1234, 4, 12
WINDOW = 256  # tokens of a text that are scored together; some texts are longer
CHOICE, TEXT, ANSWER = "pagoda_choices", "pagoda_perplexity", "pagoda_answers"
HF = {"dtype": "float32", "max_length": WINDOW}
# Both keep room for the token that an API must generate, and one for the token that a window begins with.
COMPLETIONS = {"max_length": WINDOW + 2, "tokenizer_backend": "huggingface", "num_concurrent": 4}
OFFLINE = {"dtype": "float32", "max_model_len": WINDOW + 2, "threads": 1, "kv_bytes": 64 * 2**20}


class Evaluation(NamedTuple):
    """What one run of lm-eval says: the figures of each task, and of each of its documents what the model answered."""

    results: Mapping[str, Mapping[str, Any]]
    answers: Mapping[str, Mapping[int, Any]]


class Work(NamedTuple):
    """The tasks and where their figures go."""

    folder: Path
    items: int


@pytest.fixture(scope="module", params=[pytest.param(40, id="40 items"), pytest.param(200, id="200 items", marks=pytest.mark.full)])
def work(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("tasks")
    write_tasks(folder, request.param)
    return Work(folder, request.param)


@pytest.fixture(scope="module")
def judge(work: Work) -> Evaluation:
    return run(work, "hf", {"pretrained": str(tiny_model()), **HF}, (CHOICE, TEXT, ANSWER), "--device", "cpu", "--batch_size", "8")


@pytest.fixture(scope="module")
def by_completions(work: Work, trained: Replica) -> Evaluation:
    arguments = {"model": TINY, "base_url": f"{api(trained)}/completions", "tokenizer": str(tiny_model()), **COMPLETIONS}
    return run(work, "local-completions", arguments, (CHOICE, TEXT, ANSWER), "--batch_size", "16")


@pytest.fixture(scope="module")
def by_engine(work: Work) -> Evaluation:
    return run(work, "pagoda", {"pretrained": str(tiny_model()), **OFFLINE}, (CHOICE, TEXT, ANSWER))


def test_completions_score_and_answer_as_hf_does(by_completions: Evaluation, judge: Evaluation, work: Work) -> None:
    same_scores(by_completions, judge, work)
    same_answers(by_completions, judge)


def test_the_offline_engine_scores_and_answers_as_hf_does(by_engine: Evaluation, judge: Evaluation, work: Work) -> None:
    same_scores(by_engine, judge, work)
    same_answers(by_engine, judge)


def test_chat_completions_answer_as_hf_does(trained: Replica, judge: Evaluation, work: Work) -> None:
    arguments = {"model": TINY, "base_url": f"{api(trained)}/chat/completions", "num_concurrent": 4}
    same_answers(run(work, "local-chat-completions", arguments, (ANSWER,)), judge)


def same_scores(found: Evaluation, judge: Evaluation, work: Work) -> None:
    ours, theirs = (one.answers[CHOICE] for one in (found, judge))
    assert len(theirs) == work.items
    assert ours.keys() == theirs.keys()
    for number, scores in theirs.items():
        assert len(scores) == CHOICES
        for (score, greedy), (expected, expected_greedy) in zip(ours[number], scores, strict=True):
            assert score == pytest.approx(expected, abs=1e-3), f"document {number}"
            assert greedy == expected_greedy, f"document {number}"
    assert found.results[CHOICE]["acc,none"] == judge.results[CHOICE]["acc,none"]
    assert judge.results[CHOICE]["acc,none"] > 0.9, "the model knows the answers by heart, so the scores mean something"
    for number, expected in judge.answers[TEXT].items():
        assert found.answers[TEXT][number] == pytest.approx(expected, rel=1e-3), f"text {number}"
    for name in ("word_perplexity,none", "byte_perplexity,none", "bits_per_byte,none"):
        assert found.results[TEXT][name] == pytest.approx(judge.results[TEXT][name], rel=1e-3)
        assert math.isfinite(judge.results[TEXT][name])


def same_answers(found: Evaluation, judge: Evaluation) -> None:
    assert found.answers[ANSWER] == judge.answers[ANSWER]
    assert found.results[ANSWER]["exact_match,none"] == judge.results[ANSWER]["exact_match,none"] == 1.0


def run(work: Work, model: str, arguments: Mapping[str, Any], tasks: tuple[str, ...], *more: str) -> Evaluation:
    """By its own command line; ours adds the offline engine to it and nothing else."""
    module = "pagoda_daemon.offline.lm_eval" if model == "pagoda" else "lm_eval"
    out = work.folder / model
    said = ",".join(f"{name}={value}" for name, value in arguments.items())
    argv = ["-P", "-m", module, "run", "--model", model, "--model_args", said, "--tasks", ",".join(tasks), *more]
    argv += ["--include_path", str(work.folder), "--apply_chat_template", "--log_samples", "--output_path", str(out), "--seed", str(SEED)]
    run_in(SUITE, *argv, env=variables(work.folder))
    (figures,) = out.rglob("results_*.json")
    return Evaluation(json.loads(figures.read_text())["results"], {task: answers(out, task) for task in tasks})


def variables(folder: Path) -> dict[str, str]:
    """No hub, caches of this test alone, and our packages beside lm-eval's."""
    ours = ":".join(str(ROOT / name) for name in ("daemon", "contracts", "kernels", "sizing"))
    return {"PYTHONPATH": ours, "HF_HOME": str(folder / "hf"), "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def answers(out: Path, task: str) -> dict[int, Any]:
    """What the model said to each document, before lm-eval makes figures of it."""
    (path,) = out.rglob(f"samples_{task}_*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return {line["doc_id"]: _answer(task, line["resps"]) for line in lines}


def _answer(task: str, said: list[list[Any]]) -> Any:
    if task == CHOICE:
        return [(float(score), str(greedy) == "True") for ((score, greedy),) in said]
    ((one,),) = said
    return one if task == ANSWER else float(one[0] if isinstance(one, list) else one)


def write_tasks(folder: Path, items: int) -> None:
    luck = random.Random(SEED)
    asked = known()
    others = sorted({pair.answer for pair in asked})
    documents: dict[str, list[dict[str, Any]]] = {CHOICE: [], TEXT: [], ANSWER: []}
    for pair in luck.sample(asked, items) if items <= len(asked) else luck.choices(asked, k=items):
        wrong = luck.sample([one for one in others if one != pair.answer], CHOICES - 1)
        at = luck.randrange(CHOICES)
        documents[CHOICE].append({"question": pair.question, "choices": [*wrong[:at], pair.answer, *wrong[at:]], "answer": at})
    documents[ANSWER] = [pair._asdict() for pair in luck.sample(asked, min(20, items))]
    documents[TEXT] = [{"text": text} for text in luck.sample(sorted(texts()), TEXTS)]
    for name, entries in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(entries))
        task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.json")}}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({**task, "test_split": "test", **FORMS[name]}))


@cache
def known() -> list[QA]:
    return questions()


def texts() -> Iterator[str]:
    """Short ones, and some of several windows."""
    for text in TOPICS.values():
        if 200 < len(text) < 4000:
            yield text


FORMS: dict[str, dict[str, Any]] = {
    CHOICE: {
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    },
    TEXT: {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity", "bits_per_byte")],
    },
    ANSWER: {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["\n\n\n"], "do_sample": False, "max_gen_toks": 64},
        "metric_list": [{"metric": "exact_match"}],
    },
}
