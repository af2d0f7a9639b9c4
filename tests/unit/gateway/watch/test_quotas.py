"""What a gateway keeps of a TenantQuota."""

from pagoda_contracts.resources.tenant import TenantQuotaSpec
from pagoda_gateway.watch.quotas import rule_of


def test_the_names_and_namespaces_of_a_quota_are_its_rules():
    spec = {"subjects": {"apiKeysSecretRef": {"namespace": "ns", "name": "s"}}, "models": ["m"], "modelNamespaces": ["a", "b"]}
    rule = rule_of("q", TenantQuotaSpec.model_validate(spec))
    assert (rule.name, rule.models, rule.namespaces) == ("q", {"m"}, {"a", "b"})
