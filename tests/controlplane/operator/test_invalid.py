"""A service that an edit makes invalid is told so at once, and goes on as it was."""

import time

import pytest
from pagoda_operator.api.state import EVENTS, SERVICES
from support.kube.client import eventually
from support.kube.operator_process import OPERATOR, USER, running_operator

pytestmark = pytest.mark.cluster


def test_what_becomes_invalid_is_reported_at_its_event_and_touches_no_child(real, account):
    """Long before the next resync: by the edit's own event. How many seconds that takes: bench/reaction.py."""
    with running_operator(account, "--resync", "10m", program=(OPERATOR,)) as operator:  # as installed
        real.apply()
        real.serve()
        real.reported(Ready="Available", Reconciling="Settled")
        edited = time.time()
        real.edit(podTemplate={"spec": {"hostNetwork": True}})
        assert "spec.hostNetwork" in real.reported(Stalled="PodTemplateForbidden")["Stalled"]["message"]
        print("told_s", round(time.time() - edited, 2))

        def written():
            return {
                (event["objectRef"]["resource"], event["objectRef"].get("subresource", ""))
                for event in real.cluster.audit(user=USER, since=edited)
                if event["objectRef"].get("namespace") == real.namespace
            }

        # Who reads may see a write before its writer has the answer, and only by then it is in the log.
        eventually(lambda: (SERVICES.plural, "status") in written(), "the verdict in the audit log")
        assert written() <= {(SERVICES.plural, "status"), (EVENTS.plural, "")}
        assert operator.events("reconcile_bug") == []
