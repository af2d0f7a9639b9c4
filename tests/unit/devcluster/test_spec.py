"""Names, slots and addresses: what keeps two clusters on one machine apart."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_devcluster.cluster.errors import UsageError
from pagoda_devcluster.cluster.spec import SLOTS, Addresses, ClusterSpec, Nodes, check_name, from_json, link_name, preferred_slots, to_json

names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?", fullmatch=True)


def test_no_two_slots_share_a_network():
    networks = [network for slot in range(SLOTS) for network in Addresses(slot).networks]
    assert not any(one.overlaps(other) for one, other in combinations(networks, 2))
    assert len({Addresses(slot).loopback for slot in range(SLOTS)}) == SLOTS


def test_the_first_slot_has_the_addresses_of_the_documentation():
    net = Addresses(0)
    assert (str(net.service_cidr), str(net.api_service), str(net.dns_service)) == ("10.96.0.0/16", "10.96.0.1", "10.96.0.10")


@given(names)
def test_every_name_tries_every_slot_once_and_always_in_the_same_order(name):
    assert sorted(preferred_slots(name)) == list(range(SLOTS))
    assert preferred_slots(name) == preferred_slots(name)


@given(names)
def test_only_dev_starts_at_the_first_slot(name):
    assert (preferred_slots(name)[0] == 0) == (name == "dev")


@given(names, names)
def test_link_names_fit_the_kernel_and_differ(one, other):
    assert len(link_name(one)) <= 15
    assert (link_name(one) == link_name(other)) == (one == other)


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a.b", "a/b", "../x", "a" * 33, "a b", "ä"])
def test_a_name_that_could_not_be_a_label_is_refused_with_the_rule(name):
    with pytest.raises(UsageError, match="1-32 characters"):
        check_name(name)


@pytest.mark.parametrize("nodes", list(Nodes))
def test_the_state_file_brings_the_same_cluster_back(nodes):
    spec = ClusterSpec("dev", 3, nodes, Path("/c/dev"), Path("/b"), snapshotter="native")
    assert from_json(to_json(spec)) == spec


def test_without_a_node_the_api_server_stays_on_loopback():
    alone = ClusterSpec("dev", 3, Nodes.CONTROL_PLANE, Path("/c"), Path("/b"))
    assert alone.server == "https://127.64.3.1:6443"
    assert ClusterSpec("dev", 3, Nodes.KUBELET, Path("/c"), Path("/b")).server == "https://10.192.3.1:6443"
