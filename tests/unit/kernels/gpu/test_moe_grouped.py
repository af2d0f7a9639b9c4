"""Experts beside float64: how tokens are spread over them, what lies where nothing may be read, and what must not change a token's bits."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_kernels.gpu.experts.moe_config import Config, all_configs, choose_config
from pagoda_kernels.gpu.experts.moe_grouped import moe_grouped
from pagoda_kernels.gpu.experts.moe_route import LINE, Routing, moe_route, most_tiles
from pagoda_kernels.reference import moe_grouped as reference
from pagoda_kernels.testing import KIND_OF, assert_close, device

SMALL = Config(16, 32, 32, 4, 2, 32, 32, 4, 2)
SWAPPED = replace(SMALL, block_n=64, down_n=64, swap=True)
LARGE = replace(SMALL, block_m=64)  # the rows of the second product come by descriptor as well
GATHERED = replace(SMALL, descriptors=False)


class Case:
    """Random tokens and experts; weights of experts that no token asks for are NaN, and so is what lies behind the tokens."""

    def __init__(self, tokens, *, experts=6, hidden=40, width=24, top_k=2, normalised=True, dtype=torch.bfloat16, logits=None):
        chance = torch.Generator().manual_seed(tokens)
        self.routing = Routing(top_k, normalised)
        wide = torch.full((tokens + 3, hidden), torch.nan)
        wide[:tokens] = torch.randn(tokens, hidden, generator=chance)
        self.hidden = wide.to(dtype).to(device())[:tokens]
        found = torch.randn(tokens, experts, generator=chance) if logits is None else logits
        self.logits = found.to(dtype).to(device())
        parts = (torch.randn(shape, generator=chance) * 0.2 for shape in ((experts, 2 * width, hidden), (experts, hidden, width)))
        self.gate_up, self.down = (part.to(dtype).to(device()) for part in parts)
        hit = reference.moe_route(self.logits, top_k, normalised)[1].unique()
        for part in (self.gate_up, self.down):
            part[[expert for expert in range(experts) if expert not in hit]] = torch.nan

    def run(self, config=SMALL, rows=slice(None), out=None, live=None):
        parts = (self.hidden[rows], self.logits[rows], self.gate_up, self.down, self.routing)
        return moe_grouped(*parts, live=live, out=out, config=config)

    def check(self, config=SMALL):
        expected = reference.moe_grouped(self.hidden, self.logits, self.gate_up, self.down, self.routing)
        assert_close(self.run(config), expected, KIND_OF[self.hidden.dtype])


@pytest.mark.parametrize("config", [SMALL, SWAPPED, GATHERED], ids=["fetched", "swapped", "gathered"])
def test_each_token_goes_through_its_experts(config):
    Case(4, hidden=72, width=40).check(config)


def test_more_rows_of_an_expert_than_a_tile_and_none_of_others():
    alike = torch.tensor([[3.0, 0.0, 0.0, 2.0, 0.0, 0.0]]) + torch.randn(17, 1)
    Case(17, logits=alike).check()


@pytest.mark.parametrize("normalised", [True, False])
def test_of_equal_logits_the_lower_expert_comes_first_and_weights_are_in_falling_order(normalised):
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 1.0], [-0.0, 0.0, -1.0, 0.0, 0.0], [-5.0, -torch.inf, -7.0, -6.0, -torch.inf]])
    found = moe_route(logits.to(device()), Routing(3, normalised), 16)
    weights, experts = reference.moe_route(logits, 3, normalised)
    assert experts.tolist() == [[1, 3, 2], [0, 1, 3], [0, 3, 2]]
    assert_close(found.weights, weights, "fp32")
    rows = [experts.flatten().tolist()[pair] for pair in found.order.tolist()]
    assert rows == sorted(rows)


def routed(logits, top_k, block_m):
    """Rows and tiles as lists, beside what the reference sorts."""
    found = moe_route(logits.to(device()), Routing(top_k, True), block_m)
    count = int(found.tiles[0, 0])
    experts = reference.moe_route(logits, top_k, True)[1].flatten()
    assert found.order.tolist() == experts.argsort(stable=True).tolist()
    assert count < len(found.tiles)
    return [tuple(line[: LINE - 1]) for line in found.tiles[1 : 1 + count].tolist()], experts.bincount(minlength=logits.shape[1]).tolist()


def cut(counts, block_m):
    """The tiles of experts with so many rows, one after another."""
    found, first = [], 0
    for expert, count in enumerate(counts):
        found += [(expert, first + at, min(count - at, block_m)) for at in range(0, count, block_m)]
        first += count
    return found


@pytest.mark.parametrize("tokens", [1, 3, 16, 17, 33], ids=str)  # 33: of several programs
def test_rows_are_sorted_by_expert_and_tiles_cover_each_once(tokens):
    logits = torch.randn(tokens, 5, generator=torch.Generator().manual_seed(tokens))
    tiles, counts = routed(logits, 2, 16)
    assert tiles == cut(counts, 16)


@pytest.mark.parametrize(
    ("rows", "experts", "block_m"), [(1, 8, 16), (8, 128, 16), (512, 128, 16), (65536, 128, 128), (64, 1, 64), (65, 1, 64), (3, 2, 16)]
)
def test_the_worst_spread_of_rows_fits(rows, experts, block_m):
    """All experts but one have one row more than whole tiles."""
    used = min(rows, experts)
    counts = [1] * (used - 1) + [rows - used + 1]
    whole = [1 + block_m * ((rows - used) // block_m), *[1] * (used - 1)] if used else []
    assert max(len(cut(spread, block_m)) for spread in (counts, whole)) <= most_tiles(rows, experts, block_m) <= rows


def test_no_token_is_a_batch_too():
    assert Case(0).run().shape == (0, 40)


def test_a_token_of_nan_fails_alone():
    case = Case(4, experts=3)
    before = case.run()
    case.hidden[2], case.logits[3] = torch.nan, torch.nan
    after = case.run()
    assert torch.equal(after[:2], before[:2])
    assert after[2:].isnan().all()


@pytest.mark.parametrize("tokens", [4, pytest.param(40, marks=pytest.mark.deep)])  # 40: of several programs
def test_padding_touches_no_expert_and_gives_zeros(tokens):
    case = Case(tokens, experts=4, top_k=1)
    live = torch.arange(tokens, dtype=torch.int64, device=device())
    before = case.run(live=live)
    lost = case.logits.argmax(1) == case.logits[0].argmax()
    live[lost] = -1
    case.gate_up[case.logits[0].argmax()] = torch.nan
    after = case.run(live=live)
    assert (after[lost] == 0).all()
    assert torch.equal(after[~lost], before[~lost])
    assert int(moe_route(case.logits, case.routing, 1, live).tiles[0, 0]) == int((~lost).sum())


def test_the_output_may_be_given():
    case, out = Case(1), torch.full((1, 40), torch.nan, dtype=torch.bfloat16, device=device())
    assert case.run(out=out) is out
    assert not out.isnan().any()


def test_every_configuration_is_chosen_by_some_number_of_rows_and_wide_ones_for_many():
    found = all_configs(torch.bfloat16, 90)
    assert [config.block_m for config in found.values()] == [16, 32, 64, 128]
    assert all(choose_config(rows, arch=90) == config for rows, config in found.items())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"logits": lambda x: x[:, :-1].contiguous()}, "shape"),
        ({"down": lambda x: x.float()}, "float32"),
        ({"hidden": lambda x: x.t().contiguous().t()}, "strides"),
        ({"routing": lambda _: Routing(7, True)}, "7 of 6"),
    ],
    ids=["experts", "dtype", "strided", "too many"],
)
def test_what_the_kernels_could_not_read_is_refused(change, told):
    case = Case(3)
    for name, made in change.items():
        setattr(case, name, made(getattr(case, name)))
    with pytest.raises(ValueError, match=told):
        case.run()


@pytest.mark.deep
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("config", [None, SMALL, SWAPPED, LARGE, GATHERED], ids=["chosen", "small", "swapped", "large", "gathered"])
def test_dtypes(config, dtype):
    Case(9, experts=3, dtype=dtype, normalised=False).check(config)


@pytest.mark.deep
@pytest.mark.parametrize("config", [LARGE, replace(GATHERED, block_m=64)], ids=["fetched", "gathered"])
def test_many_tokens_of_several_programs(config):
    Case(70, experts=3, width=33, hidden=70).check(config)
    Case(70, experts=2).check(config)


@pytest.mark.deep
def test_all_of_many_experts():
    Case(2, experts=20, top_k=20, hidden=32, width=32).check()


@pytest.mark.deep
@pytest.mark.parametrize("config", [SMALL, SWAPPED, LARGE])
def test_a_token_has_the_same_bits_in_any_batch_of_a_configuration(config):
    case = Case(40, experts=3)
    together = case.run(config)
    for rows in (slice(0, 1), slice(36, 40)):
        assert torch.equal(case.run(config, rows), together[rows])


@pytest.mark.deep
@settings(deadline=None, max_examples=10)
@given(st.integers(1, 100), st.integers(1, 9), st.data())
def test_any_spread(tokens, experts, data):
    top_k, block_m = data.draw(st.integers(1, experts)), data.draw(st.sampled_from((16, 64)))
    skew = data.draw(st.integers(0, 6))
    logits = torch.randn(tokens, experts, generator=torch.Generator().manual_seed(tokens)) - skew * torch.arange(experts)
    tiles, counts = routed(logits, top_k, block_m)
    assert tiles == cut(counts, block_m)


@pytest.mark.skipif(device().type == "cpu", reason="takes 9 GiB, of which the interpreter would keep a record per byte")
@pytest.mark.parametrize("config", [None, GATHERED], ids=["fetched", "gathered"])
def test_weights_of_more_than_two_to_the_31_elements(config):
    """The last of the experts lies behind them."""
    experts, hidden, width = 150, 4096, 2048
    gate_up = torch.empty(experts, 2 * width, hidden, dtype=torch.bfloat16, device=device())
    down = torch.empty(experts, hidden, width, dtype=torch.bfloat16, device=device())
    for part in (gate_up, down):
        part[-1].normal_(0, 0.02)
    x = torch.randn(3, hidden, device=device(), dtype=torch.bfloat16)
    logits = torch.zeros(3, experts, device=device(), dtype=torch.bfloat16)
    logits[:, -1] = 1
    out = moe_grouped(x, logits, gate_up, down, Routing(1, True), config=config)
    assert_close(out, reference.moe_grouped(x, logits[:, -1:], gate_up[-1:], down[-1:], (1, True)), "bf16")
