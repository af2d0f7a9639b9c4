"""Usage: its labels are bounded however many keys there are, and its lines are not."""

from pagoda_contracts.gateway_metrics import GATEWAY_TOKENS
from pagoda_contracts.usage import Used
from pagoda_gateway.requests import usage
from pagoda_gateway.requests.usage import Ended, Payer, Usage
from prometheus_client.parser import text_string_to_metric_families
from support.harness.gateway import GatewayHarness


def series(metrics):
    families = text_string_to_metric_families(metrics.exposition().decode())
    samples = [one for family in families for one in family.samples if one.name == "pagoda_gateway_tokens_total"]
    return {tuple(one.labels[name] for name in GATEWAY_TOKENS.labels): one.value for one in samples}


def test_payers_beyond_the_bound_are_counted_together_and_those_before_go_on(monkeypatch):
    monkeypatch.setattr(usage, "MAX_PAYERS", 3)
    metrics, lines = GatewayHarness().metrics, []
    counted = Usage(metrics, lambda event, **fields: lines.append((event, fields["key"])))
    payers = [Payer("acme", f"k{number}", "ns/s", "", "interactive") for number in range(10)]
    for payer in [*payers, payers[0]]:
        counted.record(payer, Used(7, 4, 2), Ended("r", "m", 200))
    found = series(metrics)
    assert {labels[1] for labels in found} == {"k0", "k1", "k2", "other"}
    assert {labels[0] for labels in found} == {"acme"}, "its tenant and service stay"
    assert {labels[-1]: value for labels, value in found.items() if labels[1] == "k0"} == {"prompt": 6, "cached": 8, "answer": 4}
    rest = {labels: value for labels, value in found.items() if labels[1] == "other"}
    folded = ("acme", "other", "ns/s", "other", "interactive")
    assert rest == {(*folded, kind): 7 * each for kind, each in (("prompt", 3), ("cached", 4), ("answer", 2))}
    assert lines == [("usage", payer.key) for payer in [*payers, payers[0]]]
    for number in range(10):
        counted.record(Payer(f"t{number}", "k", "ns/s", "", "interactive"), Used(7, 4, 2), Ended("r", "m", 200))
    assert {labels[0] for labels in series(metrics)} == {"acme", "t0", "t1", "other"}
