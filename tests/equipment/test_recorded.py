"""The recorder of the fault tests is tested: what its watches do not tell, because the server was away or forgot, lists tell it."""

from __future__ import annotations

import json

import httpx
from pagoda_operator.api.state import PODS
from support.kube.recorded import Follower, Recorder


def body(name, version, uid=""):
    return {"metadata": {"name": name, "uid": uid or f"uid of {name}", "resourceVersion": str(version)}}


def line(change, name, version):
    return json.dumps({"type": change, "object": body(name, version)})


FORGOTTEN = json.dumps({"type": "ERROR", "object": {"code": 410}})


class Script:
    """In place of a server: what each list and each watch says, in turn; the last list again and again."""

    def __init__(self, lists, watches):
        self.lists, self.watches, self.asked = lists, watches, []

    def listed(self, *_):
        bodies, version = self.lists[0] if len(self.lists) == 1 else self.lists.pop(0)
        return bodies, str(version)

    def watch(self, *where, **_):
        self.asked.append(where[2])
        said = self.watches.pop(0) if self.watches else []
        if isinstance(said, Exception):
            raise said
        return iter(said)


def reported(events):
    return [(event.change, event.body["metadata"]["name"], event.version) for event in events]


def test_a_watch_goes_on_where_the_last_one_ended():
    script, events = Script([([body("a", 1)], 5)], [[line("ADDED", "b", 6)], [line("DELETED", "a", 7)]]), []
    follower = Follower(script, PODS, "ns", events.append)
    follower.step()
    follower.step()
    assert script.asked == ["5", "6"]
    assert reported(events) == [("ADDED", "a", 1), ("ADDED", "b", 6), ("DELETED", "a", 7)]


def test_what_went_and_what_came_while_the_server_forgot_is_found_in_a_list():
    lists = [([body("a", 1), body("b", 2)], 5), ([body("b", 8), body("c", 7)], 9)]
    script, events = Script(lists, [[FORGOTTEN], []]), []
    follower = Follower(script, PODS, "ns", events.append)
    follower.step()
    follower.step()
    assert script.asked == ["5", "9"]
    assert reported(events[2:]) == [("MODIFIED", "b", 8), ("ADDED", "c", 7), ("DELETED", "a", 9)]


def test_the_end_is_that_of_a_list_though_the_last_watch_said_nothing_or_broke():
    lists = [([body("a", 1), body("b", 2)], 5), ([], 9)]
    script = Script(lists, [httpx.ReadError("cut")])
    with Recorder(script, "ns", (PODS,)) as recorder:
        pass
    ends = [event for event in recorder.ordered() if event.change == "DELETED"]
    assert sorted(event.body["metadata"]["name"] for event in ends) == ["a", "b"]
