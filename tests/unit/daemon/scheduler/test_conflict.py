"""Which fields leave no token to choose, and that whoever has none is told them: by arrays alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pagoda_daemon.core.batch import NOTHING_LEFT, RowError, StepPlan, StepResult, WorkerLimits
from pagoda_daemon.core.messages import Grammar
from pagoda_daemon.core.sampling import Sampling
from pagoda_daemon.scheduler.conflict import conflict
from pagoda_daemon.simulated.device.worker import SimulatedWorker
from support.engine.drive import Drive

VOCAB = 70
PROMPT = [1, 2]


def mask(*ids: int) -> Any:
    words = np.zeros(3, np.uint32)
    for one in ids:
        words[one // 32] |= np.uint32(1 << one % 32)
    return words.view(np.int32)


def left(answer: list[int], allows: tuple[int, ...] | None = None, **said: Any) -> tuple[str, ...]:
    drive = Drive(SimulatedWorker(WorkerLimits(64, 16, VOCAB, 64)))
    drive.submit("a", PROMPT, Sampling(9, **said), grammar=None if allows is None else Grammar("regex", "x"))
    request = drive.state.waiting.get("a")
    assert request is not None
    request.mask = None if allows is None else mask(*allows)
    return conflict(request, np.asarray([*PROMPT, *answer], np.int32), VOCAB)


ALL_BUT_3 = tuple((one,) for one in range(VOCAB) if one != 3)


@pytest.mark.parametrize(
    ("answer", "allows", "said", "named"),
    [
        ([], (5, 69), {"allowed_token_ids": (6, 33)}, ("allowed_token_ids", "grammar")),
        ([], None, {"allowed_token_ids": (6, 7), "stop_token_ids": (7, 6), "min_tokens": 1}, ("allowed_token_ids", "min_tokens")),
        ([], (64,), {"stop_token_ids": (64,), "min_tokens": 1, "allowed_token_ids": (3, 64)}, ("grammar", "min_tokens")),
        ([8], None, {"allowed_token_ids": (6,), "bad_words": ((8, 6),)}, ("allowed_token_ids", "bad_words")),
        ([], (), {"allowed_token_ids": (6,)}, ("grammar",)),
        ([], (3, 4), {"stop_token_ids": (3,), "min_tokens": 1, "bad_words": ((4,),)}, ("grammar", "min_tokens", "bad_words")),
    ],
)
def test_the_fewest_fields_that_do_it_are_named(
    answer: list[int], allows: tuple[int, ...] | None, said: dict[str, Any], named: tuple[str, ...]
) -> None:
    assert left(answer, allows, **said) == named


def test_what_does_not_hold_at_this_place_is_not_blamed() -> None:
    said = {"allowed_token_ids": (6,), "stop_token_ids": (6,), "min_tokens": 1, "bad_words": ((8, 6),)}
    assert left([9], (5,), **said) == ("allowed_token_ids", "grammar")


class NothingLeft(SimulatedWorker):
    """Has no token for anybody at the third place."""

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.lengths[0] < len(PROMPT) + 2:
            return super().execute(plan)
        return StepResult(plan.rows[:0], plan.rows[:0], (RowError(int(plan.rows[0]), NOTHING_LEFT),))


@pytest.mark.parametrize(
    ("said", "fields"),
    [({"allowed_token_ids": (6,), "stop_token_ids": (6,), "min_tokens": 5}, ("allowed_token_ids", "min_tokens")), ({}, None)],
)
def test_an_answer_without_a_token_ends_with_the_fields_or_as_a_fault_of_ours(said: dict[str, Any], fields: tuple[str, ...] | None) -> None:
    drive = Drive(NothingLeft(WorkerLimits(64, 16, VOCAB, 64)))
    drive.submit("a", PROMPT, Sampling(9, **said))
    drive.drain()
    (end,) = drive.ends["a"]
    assert (end.finish_reason, end.error) == ("error", NOTHING_LEFT)
    assert (end.refusal and end.refusal.fields) == fields
