"""What must hold for every model, device and demand, not only for the examples."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from pagoda_sizing import roofline
from pagoda_sizing.devices import catalogue
from pagoda_sizing.families import parse_model
from pagoda_sizing.fit import Demand, fit, max_concurrency, smallest_degree, smallest_profile, splits
from pagoda_sizing.plan import Ask, Verdict, largest, plan
from pagoda_sizing.published import published
from pagoda_sizing.quant import KV_BYTES, WEIGHTS, stored_bytes
from support.suite.profiles import examples

MODELS = [parse_model(entry.config) for entry in published()]
DEVICES = catalogue()
models, devices = st.sampled_from(MODELS), st.sampled_from(DEVICES)
decoders = st.sampled_from([model for model in MODELS if model.decodes])
formats, kv_dtypes = st.sampled_from(sorted(WEIGHTS)), st.sampled_from(sorted(KV_BYTES))
contexts, counts = st.integers(1, 512), st.integers(1, 512)


@given(models, st.integers(0, 200_000), st.integers(0, 200_000), kv_dtypes)
def test_kv_grows_with_context_and_no_window_makes_it_shrink(model, one, other, dtype):
    short, long = sorted((one, other))
    assert model.kv_bytes(short, dtype) <= model.kv_bytes(long, dtype) <= long * model.kv_bytes_per_token(dtype)


@given(decoders, st.integers(0, 500), st.integers(0, 500), kv_dtypes)
def test_kv_is_additive_below_every_window(model, one, other, dtype):
    window = min((w for w in model.windows if w is not None), default=1 << 30)
    if one + other <= window:
        assert model.kv_bytes(one, dtype) + model.kv_bytes(other, dtype) == model.kv_bytes(one + other, dtype)
        assert model.kv_bytes(one, dtype) == one * model.kv_bytes_per_token(dtype)


@given(st.integers(0, 100_000), formats)
def test_stored_bytes_are_the_fewest_whole_bytes_that_hold_the_bits(parameters, quantisation):
    held, bits = stored_bytes(parameters, quantisation), parameters * WEIGHTS[quantisation].bits_per_weight
    assert 8 * (held - 1) < bits <= 8 * held


@given(models, formats)
def test_quantised_weights_are_no_larger_than_bf16_and_no_smaller_than_their_bits(model, quantisation):
    held = model.weight_bytes(quantisation)
    assert held <= model.weight_bytes("bf16") == 2 * model.parameters.total
    assert held * 8 >= model.parameters.total * WEIGHTS[quantisation].bits


@given(devices)
def test_a_slice_is_no_larger_than_its_device_in_anything(device):
    whole = next(other for other in DEVICES if other.name == device.whole)
    assert device.memory_bytes <= whole.memory_bytes
    assert device.bytes_per_s <= whole.bytes_per_s
    assert all(rate <= whole.flops[name] for name, rate in device.flops.items())
    assert (device.price_per_hour or 0) <= (whole.price_per_hour or 0)


@given(models, devices, contexts, counts, formats, kv_dtypes)
def test_it_fits_exactly_where_the_sum_is_no_more_than_the_memory(model, device, context, concurrency, quantisation, dtype):
    found = fit(model, device, Demand(context, concurrency, quantisation, dtype))
    needed = found.weight_bytes + found.reserve_bytes + concurrency * found.kv_bytes_per_request
    assert found.fits == (needed <= device.memory_bytes)
    assert bool(found.why_not) != found.fits


@given(st.integers(1, 10**12), st.integers(0, 10**12), st.integers(0, 10**10), st.integers(1, 10**10))
def test_max_concurrency_is_the_largest_number_that_fits(memory, weights, reserve, per_request):
    most = max_concurrency(memory, weights, reserve, per_request)
    assert most == 0 or weights + reserve + most * per_request <= memory
    assert weights + reserve + (most + 1) * per_request > memory


@given(models, devices, contexts, st.sampled_from([1, 2, 4, 8]))
def test_more_ranks_never_hold_less_each(model, device, context, degree):
    if splits(model, device, degree):
        alone, split = fit(model, device, Demand(context)), fit(model, device, Demand(context), degree)
        assert split.weight_bytes <= alone.weight_bytes
        assert split.kv_bytes_per_request <= alone.kv_bytes_per_request
        assert degree * split.weight_bytes >= alone.weight_bytes


@given(models, contexts, counts, formats, st.sampled_from(sorted({device.whole for device in DEVICES if device.profile})))
def test_the_smallest_profile_fits_and_no_smaller_one_does(model, context, concurrency, quantisation, name):
    demand = Demand(context, concurrency, quantisation)
    found = smallest_profile(model, name, demand)
    profiles = [device for device in DEVICES if device.whole == name and device.profile]
    fitting = [device for device in profiles if fit(model, device, demand).fits]
    assert (found is None) == (not fitting)
    if found is not None:
        assert found.memory_bytes == min(device.memory_bytes for device in fitting)


@given(models, devices, contexts, counts)
def test_the_smallest_degree_fits_and_no_lower_one_does(model, device, context, concurrency):
    demand = Demand(context, concurrency)
    found = smallest_degree(model, device, demand)
    lower = [degree for degree in (1, 2, 4, 8) if splits(model, device, degree) and (found is None or degree < found.degree)]
    assert not any(fit(model, device, demand, degree).fits for degree in lower)
    assert found is None or found.fits


@given(decoders, devices, contexts, contexts, counts, counts, formats)
def test_a_step_takes_no_less_with_more_context_or_batch(model, device, context, more_context, batch, more_batch, quantisation):
    context, more_context = sorted((context, more_context))
    batch, more_batch = sorted((batch, more_batch))

    def step(tokens, requests):
        return roofline.seconds(roofline.decode_work(model, Demand(tokens, 1, quantisation), requests), device, quantisation)

    assert step(context, batch) <= step(more_context, batch)
    assert step(context, batch) <= step(context, more_batch)


@given(models, devices, contexts, contexts, formats)
def test_a_longer_prompt_takes_no_less(model, device, one, other, quantisation):
    short, long = sorted((one, other))

    def prefill(prompt):
        return roofline.seconds(roofline.prefill_work(model, Demand(512, 1, quantisation), prompt), device, quantisation)

    assert prefill(short) <= prefill(long)


@given(decoders, devices, contexts, counts)
def test_what_engines_attain_is_slower_than_the_nominal_roofline(model, device, context, batch):
    work = roofline.decode_work(model, Demand(context), batch)
    assert roofline.seconds(work, device, "bf16", roofline.TYPICAL) > roofline.seconds(work, device, "bf16")


@given(st.integers(1, 10_000), st.integers(-1, 10_001))
def test_largest_finds_the_edge_of_a_falling_condition(most, edge):
    assert largest(most, lambda number: number <= edge) == max(0, min(most, edge))


@settings(max_examples=examples(30))
@given(decoders, st.integers(16, 1024), counts, formats)
def test_a_plan_has_a_row_per_device_and_a_reason_exactly_where_it_does_not_fit(model, context, concurrency, quantisation):
    rows = plan(model, DEVICES, Ask(min(context, model.max_context), concurrency, quantisation=quantisation))
    assert [row.device for row in rows] == [device.name for device in DEVICES]
    assert all(bool(row.why) == (row.verdict is not Verdict.FITS) for row in rows)
    assert all((row.tokens_per_s is None) == (row.verdict in (Verdict.NO, Verdict.UNSUPPORTED)) for row in rows)


@settings(max_examples=examples(30))
@given(decoders, devices, st.floats(1e-4, 1.0))
def test_without_a_concurrency_the_plan_takes_the_largest_batch_that_keeps_the_time_per_token(model, device, tpot):
    (row,) = plan(model, [device], Ask(512, tpot_s=tpot, degree=1))
    if row.verdict is Verdict.FITS and row.max_concurrency is not None:
        assert row.tpot_ms <= tpot * 1000
        if row.concurrency < min(row.max_concurrency, 256):
            more = plan(model, [device], Ask(512, row.concurrency + 1, tpot_s=tpot, degree=1))[0]
            assert more.verdict is Verdict.SLOW


def test_a_more_expensive_device_costs_more_per_token():
    model = next(model for model in MODELS if model.kind == "mistral")
    device = next(device for device in DEVICES if device.name == "h100")
    cheap, dear = (plan(model, [replace(device, price_per_hour=price)], Ask(512, 8))[0] for price in (2.0, 4.0))
    assert dear.dollars_per_million == 2 * cheap.dollars_per_million
