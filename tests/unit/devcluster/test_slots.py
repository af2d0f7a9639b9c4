"""Which slot a cluster gets on a machine that already has routes, ports and other clusters."""

import secrets
import socket
from functools import partial
from ipaddress import IPv4Network
from pathlib import Path

import pytest
from pagoda_devcluster.cluster.errors import StartError
from pagoda_devcluster.cluster.spec import SLOTS, Addresses, ClusterSpec, Nodes, preferred_slots, to_json
from pagoda_devcluster.machine import slots
from pagoda_devcluster.machine.network import parse_routes


def test_the_first_free_slot_of_the_names_own_order_is_chosen():
    order = preferred_slots("demo")
    assert slots.choose("demo", set(), lambda _: True) == order[0]
    assert slots.choose("demo", {order[0]}, lambda slot: slot != order[1]) == order[2]


def test_a_full_machine_is_said_to_be_full():
    with pytest.raises(StartError, match="down"):
        slots.choose("demo", set(), lambda _: False)


@pytest.mark.parametrize(
    ("route", "conflict"),
    [("10.96.0.0/16", True), ("10.96.7.0/24", True), ("10.0.0.0/8", False), ("192.168.0.0/24", False), ("10.192.0.0/30", True)],
)
def test_a_route_into_our_networks_is_a_conflict_and_a_companys_whole_range_is_not(route, conflict):
    assert slots.conflicts(Addresses(0), [IPv4Network(route)]) is conflict


def test_slots_of_other_clusters_are_taken_and_broken_state_takes_none(tmp_path: Path):
    for name, slot in (("one", 4), ("self", 5)):
        (tmp_path / name).mkdir()
        spec = ClusterSpec(name, slot, Nodes.KUBELET, tmp_path / name, tmp_path)
        (tmp_path / name / "cluster.json").write_text(to_json(spec))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "cluster.json").write_text("{")
    assert slots.held_by_others("self", tmp_path) == {4}


def own_name() -> str:
    """Claims are of the whole machine: another run of these tests does not begin its order of slots with ours."""
    return f"test-{secrets.token_hex(4)}"


def test_a_claimed_slot_is_given_to_nobody_else_until_it_is_released(tmp_path: Path):
    claim = partial(slots.claimed, own_name(), tmp_path, needs_network=False)
    with claim() as first, claim() as second:
        assert first != second
    with claim() as third:
        assert third == first


@pytest.mark.parametrize("port", slots.PORTS)
def test_a_slot_of_which_any_port_is_taken_is_not_free(tmp_path: Path, port: int):
    name = own_name()
    with slots.claimed(name, tmp_path, needs_network=False) as slot:
        pass
    with socket.socket() as listener:
        listener.bind((str(Addresses(slot).loopback), port))
        listener.listen()
        with slots.claimed(name, tmp_path, needs_network=False) as other:
            assert other != slot


def test_a_port_taken_on_every_address_is_named_instead_of_48_full_slots(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slots, "taken_ports", lambda address: [6443] if address == slots.NO_SLOT else [])
    with pytest.raises(StartError, match=r"port 6443 is in use on every address .*sport = :6443"):
        slots.refuse_ports_taken_everywhere()


def test_the_address_that_stands_for_all_is_no_clusters():
    assert slots.NO_SLOT not in {str(Addresses(slot).loopback) for slot in range(SLOTS)}


def test_routes_are_read_with_and_without_a_prefix():
    text = '[{"dst":"default","gateway":"1.2.3.4"},{"dst":"10.1.0.0/16"},{"dst":"10.2.3.4","type":"local"}]'
    assert parse_routes(text) == [IPv4Network("10.1.0.0/16"), IPv4Network("10.2.3.4/32")]
    assert parse_routes("") == []
