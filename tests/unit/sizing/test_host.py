"""What a daemon on CPU takes, as placement counts it, against what the daemon counts itself: less, and not by much."""

import pytest
from pagoda_contracts.launch import EngineConfig
from pagoda_daemon.model.config import FAMILIES, parse_spec
from pagoda_daemon.runner.kv_size import _SHARE_OF_CONTAINER, needs
from pagoda_sizing.errors import SizingError
from pagoda_sizing.families import parse_model
from pagoda_sizing.host import KV_SHARE, STEP_TOKENS, cache_room, host_reserve
from pagoda_sizing.published import published

PROCESSES = 100 << 20


LOADABLE = {family.model_type: name for name, family in FAMILIES.items()}
PUBLISHED = [entry for entry in published() if entry.config["model_type"] in LOADABLE]


@pytest.mark.parametrize("entry", PUBLISHED, ids=[entry.name for entry in PUBLISHED])
@pytest.mark.parametrize("rows", [1, 8, 64])
def test_a_step_is_no_more_than_the_daemon_counts_and_most_of_it(entry, rows):
    raw = {key: value for key, value in entry.config.items() if key != "quantization_config"}
    spec, model = parse_spec({**raw, "architectures": [LOADABLE[raw["model_type"]]]}), parse_model(entry.config)
    engine = EngineConfig(max_concurrency=rows)
    own = needs(spec, engine, 0, 2, 4).fixed(4096)
    assert own * 0.45 <= host_reserve(model, rows) - PROCESSES <= own


def test_it_is_the_daemons_budget_and_share():
    assert (EngineConfig().token_budget, _SHARE_OF_CONTAINER) == (STEP_TOKENS, KV_SHARE)
    assert cache_room(800) == 1000


def test_no_requests_are_refused():
    with pytest.raises(SizingError):
        host_reserve(parse_model(PUBLISHED[0].config), 0)
