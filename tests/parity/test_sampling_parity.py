"""Each change of the logits against transformers' processor of that name, on random logits; against vLLM's formula where they differ.

transformers counts no frequency or presence, and lets a bad word begin in the prompt, where vLLM looks at the answer only: there the
prompt is empty. Numbers are equal bit for bit where both do the same float operations.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from pagoda_daemon.core.batch import ShapedRow
from pagoda_daemon.core.sampling import Shaping
from pagoda_daemon.runner.draw import Drawing, _least
from pagoda_daemon.runner.logprobs import answer_logprobs
from pagoda_daemon.runner.shaping import Shaper
from support.engine.sampling_rows import places, random_rows, shaped_row
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

pytestmark = pytest.mark.parity

ROWS, WIDTH, PROMPT = 8, 1000, 12


def logits(scale: float = 3.0) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(11)) * scale


def answers(count: int, below: int = WIDTH) -> torch.Tensor:
    """Token ids [rows, count], with repeats."""
    return torch.randint(0, below, (ROWS, count), generator=torch.Generator().manual_seed(12))


def shaped(shaping: Shaping, ids: torch.Tensor, prompt: int) -> list[ShapedRow]:
    return [shaped_row(at, shaping, row[:prompt], row[prompt:]) for at, row in enumerate(ids.tolist())]


def array(*ids: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.asarray(ids, np.int32)


BIASES = {5: 2.5, 17: -100.0, 999: 7.0}
BAD_WORDS = ((7,), (3, 4), (1, 2, 3), (2, 1))


def bad_words() -> LogitsProcessor:
    return NoBadWordsLogitsProcessor([list(word) for word in BAD_WORDS], eos_token_id=[])


SHAPINGS: dict[str, tuple[Shaping, Callable[[], LogitsProcessor]]] = {
    "repetition_penalty above 1": (Shaping(repetition=1.3), lambda: RepetitionPenaltyLogitsProcessor(1.3)),
    "repetition_penalty below 1": (Shaping(repetition=0.7), lambda: RepetitionPenaltyLogitsProcessor(0.7)),
    "min_tokens not reached": (
        Shaping(min_tokens=40, stop_ids=array(4, 9)),
        lambda: MinNewTokensLengthLogitsProcessor(PROMPT, 40, [4, 9]),
    ),
    "min_tokens just not reached": (
        Shaping(min_tokens=29, stop_ids=array(4, 9)),
        lambda: MinNewTokensLengthLogitsProcessor(PROMPT, 29, [4, 9]),
    ),
    "min_tokens reached": (Shaping(min_tokens=28, stop_ids=array(4, 9)), lambda: MinNewTokensLengthLogitsProcessor(PROMPT, 28, [4, 9])),
    "logit_bias": (
        Shaping(bias_ids=array(*BIASES), bias=np.asarray([*BIASES.values()], np.float32)),
        lambda: SequenceBiasLogitsProcessor({(token,): bias for token, bias in BIASES.items()}),
    ),
    "allowed_token_ids": (Shaping(allowed=array(1, 2, 3)), lambda: PrefixConstrainedLogitsProcessor(lambda *_: [1, 2, 3], 1)),
}


@pytest.mark.parametrize("name", SHAPINGS)
def test_logits_equal_transformers(name: str) -> None:
    shaping, theirs = SHAPINGS[name]
    ids = answers(PROMPT + 28)
    ours = Shaper().shape(logits(), shaped(shaping, ids, PROMPT))
    assert ours.equal(theirs()(ids, logits()))
    assert ours.equal(logits()) is (name == "min_tokens reached")


@pytest.mark.parametrize("count", [1, 2, 3, 30])
def test_bad_words_equal_transformers(count: int) -> None:
    ids = answers(count, below=5)  # few ids, so that words do begin
    ours = Shaper().shape(logits(), shaped(Shaping(bad_words=BAD_WORDS), ids, 0))
    assert ours.equal(bad_words()(ids, logits()))
    assert len({tuple(row.isinf().nonzero().flatten().tolist()) for row in ours}) > 1


def test_frequency_and_presence_equal_vllms_formula() -> None:
    ids = answers(60, below=40)
    frequency, presence = 0.7, -0.4
    counts = torch.zeros(ROWS, WIDTH).scatter_add_(1, ids[:, PROMPT:], torch.ones(ROWS, 60 - PROMPT))
    wanted = logits() - frequency * counts
    wanted -= presence * (counts > 0)
    assert Shaper().shape(logits(), shaped(Shaping(frequency=frequency, presence=presence), ids, PROMPT)).equal(wanted)


CUTS: dict[str, tuple[dict[str, float], list[LogitsProcessor]]] = {
    "top_k 1": ({"top_k": 1}, [TopKLogitsWarper(1)]),
    "top_k 50": ({"top_k": 50}, [TopKLogitsWarper(50)]),
    "top_k of all": ({"top_k": 5000}, [TopKLogitsWarper(5000)]),
    "top_p small": ({"top_p": 0.05}, [TopPLogitsWarper(0.05)]),
    "top_p": ({"top_p": 0.9}, [TopPLogitsWarper(0.9)]),
    "top_p large": ({"top_p": 0.999}, [TopPLogitsWarper(0.999)]),
    "min_p": ({"min_p": 0.03}, [MinPLogitsWarper(0.03)]),
    "temperature and top_p": ({"temperature": 0.6, "top_p": 0.9}, [TemperatureLogitsWarper(0.6), TopPLogitsWarper(0.9)]),
    "top_k then top_p": ({"top_k": 30, "top_p": 0.8}, [TopKLogitsWarper(30), TopPLogitsWarper(0.8)]),
    # vLLM cuts by min_p before top_p; transformers' usual order is the other one.
    "min_p then top_k then top_p": (
        {"min_p": 0.01, "top_k": 40, "top_p": 0.7},
        [MinPLogitsWarper(0.01), TopKLogitsWarper(40), TopPLogitsWarper(0.7)],
    ),
}


@pytest.mark.parametrize("name", CUTS)
@pytest.mark.parametrize("looked", [64, 256, WIDTH])
def test_what_is_kept_equals_transformers_or_is_not_settled(name: str, looked: int) -> None:
    settings, theirs = CUTS[name]
    scores = logits()
    for processor in theirs:
        scores = processor(answers(1), scores)
    rows = random_rows(ROWS, **settings)  # type: ignore[arg-type]
    drawing = Drawing(logits() / settings.get("temperature", 1.0), rows, places(ROWS))
    least, settled = _least(drawing.logits.sort(descending=True).values[:, :looked], drawing)
    kept = drawing.logits >= least
    sure = settled | (looked == WIDTH)
    assert kept[sure].equal(scores.isfinite()[sure])
    assert not (scores.isfinite().sum(-1) > looked)[sure].any()
    assert sure.any() or scores.isfinite().sum(-1).max() >= looked


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_torchs_log_softmax(dtype: torch.dtype) -> None:
    scores = logits().to(dtype)
    tokens = answers(1)[:, 0].numpy().astype(np.int32)
    found = answer_logprobs(scores, tokens, places(ROWS), np.asarray([0, 1, 5, 20, -1, 20, 0, 3], np.int32))
    assert found.rows.tolist() == [0, 1, 2, 3, 5, 6, 7]
    wanted = scores.float().log_softmax(-1)
    assert found.logprob.tolist() == [wanted[row, tokens[row]].item() for row in found.rows.tolist()]
    assert found.rank.tolist() == [int((wanted[row] > wanted[row, tokens[row]]).sum()) + 1 for row in found.rows.tolist()]
    for at, row in enumerate(found.rows.tolist()):
        width = int(found.widths[at])
        assert found.top_logprobs[at, :width].tolist() == wanted[row].sort(descending=True).values[:width].tolist()
        assert wanted[row, torch.from_numpy(found.top_ids[at, :width]).long()].tolist() == found.top_logprobs[at, :width].tolist()
