"""The pool of adapters on a device: it takes no memory beyond what was set aside, however many versions come and go."""

import numpy as np
import pytest
import torch
from pagoda_daemon.gpu.adapters import SPARE, AdapterPool, pool_bytes
from pagoda_daemon.lora.load import pooled_adapter
from pagoda_kernels.gpu.lora import lora_config
from pagoda_kernels.gpu.lora_pool import lora_tile
from support.engine.native_reference import shape
from support.engine.random_adapters import matrices, wide

SPEC, LIKE, PLACES, RANK = shape(), torch.zeros(1), 2, 20


@pytest.fixture(scope="module")
def adapters():
    return [pooled_adapter(wide(matrices(SPEC, seed, lambda _: RANK)), SPEC, LIKE) for seed in (1, 2, 3)]


def there(pool, slot, adapter):
    """Whether `slot` has it."""
    begin = int(pool.pool.places[slot, 0, 0, 0])
    return torch.equal(pool.pool.weights[begin:][: adapter.packed.weights.numel()], adapter.packed.weights)


def test_an_adapter_that_finds_no_place_is_refused_and_one_that_leaves_gives_its_place_to_any_slot(adapters):
    pool = AdapterPool(SPEC, PLACES, RANK, LIKE)
    assert pool.pool.weights.nbytes + pool.pool.places.nbytes < pool_bytes(SPEC, PLACES, RANK, 8, LIKE.itemsize)
    for slot in range(1, PLACES + SPARE + 1):
        pool[slot] = adapters[slot % 2]
    with pytest.raises(MemoryError, match="all 4 places"):
        pool[5] = adapters[2]
    assert sorted(pool) == [1, 2, 3, 4]
    del pool[2]
    pool[9] = adapters[2]
    assert [there(pool, slot, adapters[slot % 2]) for slot in (1, 3, 4)] == [True] * 3
    assert there(pool, 9, adapters[2])


def test_versions_come_and_go_in_the_same_places(adapters):
    pool = AdapterPool(SPEC, 1, RANK, LIKE)
    for version in range(9):
        pool[1 + version % 5] = adapters[version % 3]
        pool.pop(1 + (version - 1) % 5, None)
    assert len(pool) == 1
    assert there(pool, 4, adapters[8 % 3])


@pytest.mark.parametrize("places", [1, 8, 128])
@pytest.mark.parametrize("tokens", [16, 256, 2048])
def test_what_steps_leave_between_the_products_is_counted_for_narrow_tiles_and_wide_ones(places, tokens):
    counted = pool_bytes(SPEC, places, RANK, tokens, 2) - pool_bytes(SPEC, places, RANK, 0, 2)
    for used in range(1, places + SPARE + 1):
        splits = lora_config(lora_tile(np.resize(np.arange(1, used + 1, dtype=np.int32), tokens)), 2).splits
        assert counted >= splits * tokens * 3 * 32 * 4
