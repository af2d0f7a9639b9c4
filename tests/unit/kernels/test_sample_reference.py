"""The reference of the GPU's sampler against the daemon's own draw: the same noise, and the same tokens of rows with filters."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pagoda_daemon.core.sampling import DRAW
from pagoda_daemon.runner.draw import draw as daemons_draw
from pagoda_daemon.runner.noise import gumbel
from pagoda_kernels.reference import sample as reference
from pagoda_kernels.reference.sample import Draw
from support.judges.close import assert_close

PLACES = ("temperature", "top_k", "top_p", "min_p", "seed")


def rows_of(draws):
    rows = np.zeros(len(draws), DRAW)
    for name in PLACES:
        rows[name] = [getattr(draw, name) for draw in draws]
    return rows


@pytest.mark.parametrize(
    "draw",
    [
        Draw(0.7, top_k=5),
        Draw(1.3, top_p=0.9),
        Draw(1.3, min_p=0.05),
        Draw(2.0, top_k=40, top_p=0.8, min_p=0.02),
        Draw(1.0, top_k=200, top_p=0.5),
        Draw(1.0, top_p=0.4, min_p=0.01),
    ],
    ids=str,
)
@pytest.mark.parametrize("vocab", [31, 1000])
def test_filtered_rows_draw_the_daemon_s_tokens(vocab, draw):
    draws = [replace(draw, seed=2**63 + 31 * at, position=at * 1000) for at in range(20)]
    # bf16: many are equal.
    logits = (3 * torch.randn(20, vocab, generator=torch.Generator().manual_seed(vocab))).bfloat16().float()
    positions = np.array([one.position for one in draws], np.int32)
    found = daemons_draw(logits, rows_of(draws), positions)
    assert reference.sample(logits, draws)[0].tolist() == found.tolist()


def test_the_noise_is_the_daemon_s():
    ids = torch.tensor([0, 1, 127_999, 2**30, 2**31 - 1], dtype=torch.int32)
    for seed, position in ((0, 0), (2**64 - 1, 2**31 - 1), (12345678901234567890, 77)):
        theirs = gumbel(ids, np.array([seed], np.uint64), np.array([position], np.int32))
        assert_close(theirs[0].double(), reference.noise(ids, Draw(1.0, seed=seed, position=position)), rtol=1e-5, atol=1e-6)
