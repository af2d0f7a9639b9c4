"""What a daemon on CPU takes, as placement counts it, against what the daemon counts itself: less, and not by much."""

import pytest
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.errors import DaemonError
from pagoda_daemon.model.config import parse_spec
from pagoda_daemon.runner.kv_size import _SHARE_OF_CONTAINER, needs
from pagoda_sizing.errors import SizingError
from pagoda_sizing.families import parse_model
from pagoda_sizing.host import KV_SHARE, STEP_TOKENS, cache_room, host_reserve
from pagoda_sizing.published import published

PROCESSES = 100 << 20


def built():
    for entry in published():
        try:
            yield entry.name, parse_spec(entry.config), parse_model(entry.config)
        except (DaemonError, SizingError, KeyError):
            continue


BUILT = list(built())


def test_models_that_the_daemon_has_are_looked_at():
    assert len(BUILT) >= 5


@pytest.mark.parametrize(("name", "spec", "model"), BUILT, ids=[name for name, _, _ in BUILT])
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_a_step_is_no_more_than_the_daemon_counts_and_most_of_it(name, spec, model, rows):
    engine = EngineConfig(max_concurrency=rows)
    own = needs(spec, engine, 0, 2, 4).fixed(4096)
    assert own * 0.5 <= host_reserve(model, rows) - PROCESSES <= own, name


def test_it_is_the_daemons_budget_and_share():
    assert (EngineConfig().token_budget, _SHARE_OF_CONTAINER) == (STEP_TOKENS, KV_SHARE)
    assert cache_room(800) == 1000


def test_no_requests_are_refused():
    with pytest.raises(SizingError):
        host_reserve(BUILT[0][2], 0)
