"""Penalties, bias and bans of single rows, by hand-made numbers; against transformers' processors: tests/parity."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pagoda_daemon.core.batch import ShapedRow
from pagoda_daemon.core.sampling import Shaping
from pagoda_daemon.runner.shaping import Shaper, banned_ids
from support.engine.sampling_rows import shaped_row

WIDTH = 32


def logits(rows: int = 3) -> torch.Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(5))


def shape(scores: torch.Tensor, *rows: ShapedRow) -> torch.Tensor:
    return Shaper().shape(scores, rows)


def test_frequency_and_presence_count_the_answer_only() -> None:
    scores = logits()
    row = shaped_row(1, Shaping(frequency=0.5, presence=0.25), [1, 2, 3], [2, 2, 7])
    change = (scores - shape(scores, row))[1]
    wanted = torch.zeros(WIDTH)
    wanted[2], wanted[7] = 2 * 0.5 + 0.25, 0.5 + 0.25
    assert change.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)


def test_repetition_counts_prompt_and_answer_once_each() -> None:
    scores = torch.tensor([[2.0, -2.0, 4.0, -4.0, 1.0]])
    found = shape(scores, shaped_row(0, Shaping(repetition=2.0), [0, 0, 1], [3, 3]))
    assert found[0].tolist() == [1.0, -4.0, 4.0, -8.0, 1.0]


def test_only_the_rows_that_ask_are_changed_each_by_its_own_numbers() -> None:
    scores = logits(4)
    first = shaped_row(0, Shaping(presence=1.0), [9], [4, 5])
    third = shaped_row(
        2, Shaping(repetition=1.5, frequency=1.0, bias_ids=np.asarray([8], np.int32), bias=np.asarray([3.0], np.float32)), [4], [6]
    )
    both = shape(scores, first, third)
    assert both[[1, 3]].equal(scores[[1, 3]])
    assert both[0].equal(shape(scores, first)[0])
    assert both[2].equal(shape(scores, third)[2])


def test_counts_of_one_step_do_not_reach_the_next() -> None:
    shaper, scores = Shaper(), logits()
    row = shaped_row(1, Shaping(frequency=0.5), [], [2, 2, 7])
    once = shaper.shape(scores, [row])
    shaper.shape(scores, [shaped_row(1, Shaping(frequency=0.5), [], [3] * 50)])
    assert shaper.shape(scores, [row]).equal(once)
    assert shaper.shape(logits(1), [shaped_row(0, Shaping(frequency=0.5), [], [2, 2, 7])]).shape == (1, WIDTH)


def test_a_bias_is_added_before_the_penalties() -> None:
    scores = torch.tensor([[1.0, 1.0]])
    shaping = Shaping(repetition=2.0, bias_ids=np.asarray([0], np.int32), bias=np.asarray([-3.0], np.float32))
    assert shape(scores, shaped_row(0, shaping, [0], []))[0].tolist() == [-4.0, 1.0]


@pytest.mark.parametrize(
    ("prompt", "answer", "banned"),
    [
        ([], [], [9]),
        ([], [1], [2, 9]),
        ([], [1, 2], [3, 9]),
        ([], [5, 1, 2], [3, 9]),
        ([1], [2], [9]),  # the prompt's tokens are not the answer's: vLLM's reading
        ([], [2, 1], [2, 9]),
    ],
)
def test_a_bad_word_is_banned_where_the_answer_ends_with_its_beginning(prompt: list[int], answer: list[int], banned: list[int]) -> None:
    shaping = Shaping(bad_words=((1, 2), (1, 2, 3), (9,)))
    assert sorted(banned_ids(shaped_row(0, shaping, prompt, answer)).tolist()) == banned


def test_stop_ids_are_banned_until_min_tokens() -> None:
    shaping = Shaping(min_tokens=2, stop_ids=np.asarray([3, 4], np.int32))
    assert [banned_ids(shaped_row(0, shaping, [1], [7] * count)).tolist() for count in range(3)] == [[3, 4], [3, 4], []]


def test_only_allowed_ids_keep_their_logits() -> None:
    scores = logits()
    found = shape(scores, shaped_row(2, Shaping(allowed=np.asarray([3, 30], np.int32)), [], []))
    assert found[2].isfinite().nonzero().flatten().tolist() == [3, 30]
    assert found[2, [3, 30]].equal(scores[2, [3, 30]])
    assert found[:2].equal(scores[:2])
