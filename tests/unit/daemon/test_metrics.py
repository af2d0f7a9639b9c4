"""The exposition: every promised family, readable by prometheus_client's own parser, with the state's values."""

from pagoda_contracts import metrics as names
from pagoda_contracts.pb.daemon_pb2 import Phase
from pagoda_daemon.engine.messages import Ready, Stats
from pagoda_daemon.health import Replica
from pagoda_daemon.metrics import Counts, Exposition
from prometheus_client.parser import text_string_to_metric_families


def samples(exposition):
    families = text_string_to_metric_families(exposition.text().decode())
    return {(sample.name, *sorted(sample.labels.items())): sample.value for family in families for sample in family.samples}


def loaded():
    replica = Replica(born=0.0, phase=Phase.PHASE_READY, limits=Ready(64, 8, 16, 40, 2))
    replica.stats = Stats(running=3, waiting=2, blocks_used=10, blocks_free=30, blocks_total=40, preemptions=5)
    counts = Counts()
    counts.prompt_tokens, counts.generation_tokens = 11, 22
    counts.finished.update({"stop": 4, "length": 1})
    for seconds in (0.0005, 0.001, 0.03, 9999.0):
        counts.first_token(seconds)
    return Exposition("m", replica, counts)


def test_values_are_the_states():
    base = (("engine", "0"), ("model_name", "m"))
    seen = samples(loaded())
    assert seen[("vllm:num_requests_running", *base)] == 3
    assert seen[("vllm:num_requests_waiting", *base)] == 2
    assert seen[("vllm:kv_cache_usage_perc", *base)] == 0.25
    assert seen[("vllm:prompt_tokens_total", *base)] == 11
    assert seen[("vllm:generation_tokens_total", *base)] == 22
    assert seen[("vllm:num_preemptions_total", *base)] == 5
    assert seen[("vllm:request_success_total", ("engine", "0"), ("finished_reason", "stop"), ("model_name", "m"))] == 4
    assert seen[("vllm:cache_config_info", ("block_size", "16"), ("engine", "0"), ("model_name", "m"), ("num_gpu_blocks", "40"))] == 1


def test_first_token_times_fall_into_the_promised_buckets():
    seen = samples(loaded())

    def below(bound):
        return seen[("vllm:time_to_first_token_seconds_bucket", ("engine", "0"), ("le", bound), ("model_name", "m"))]

    assert [below(bound) for bound in ("0.001", "0.02", "0.04", "2560.0", "+Inf")] == [2, 2, 3, 3, 4]
    assert seen[("vllm:time_to_first_token_seconds_count", ("engine", "0"), ("model_name", "m"))] == 4


def test_every_family_of_the_contract_is_exposed():
    exposed = {family.name: family.type for family in text_string_to_metric_families(loaded().text().decode())}
    assert exposed == {metric.name: metric.kind for metric in names.DAEMON}


def test_a_replica_without_blocks_divides_by_nothing():
    assert samples(Exposition("m", Replica(born=0.0), Counts()))[("vllm:kv_cache_usage_perc", ("engine", "0"), ("model_name", "m"))] == 0
