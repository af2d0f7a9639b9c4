"""All times in objects are the API server's: whatever clock a leader has, its successor reads them as they were meant."""

import ast
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

import pagoda_operator.serve.parts
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio.client.configuration import Configuration
from pagoda_operator.api.errors import ClusterError
from pagoda_operator.api.state import CONFIG_MAPS, PODS, Key
from pagoda_operator.client.cluster import KubeCluster
from pagoda_operator.client.server_time import ServerTime
from pagoda_operator.lead.leader import Alone
from pagoda_operator.run.reconcile import Reconciler
from pagoda_operator.run.senses import Senses
from pagoda_operator.run.settings import Settings
from pagoda_operator.serve.parts import core
from pagoda_operator.watch.ages import Ages
from support.servers.failing_server import FailingServer
from support.worlds.fleets import CPU, H100, fleet, gpu, node, pod, whole
from support.worlds.placing import placement, world

KEY = Key("ns", "a")
BEGIN = 1_767_225_600.25


def http(unix):
    return format_datetime(datetime.fromtimestamp(int(unix), UTC), usegmt=True)


def stamp(unix):
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Machine:
    """Where an operator runs: true time passes, by its own clock it is another, and its steady one began some time."""

    def __init__(self, skew=0.0, began=1000.0):
        self.true, self.skew, self.began = BEGIN, skew, began
        self.time = ServerTime(self.steady, lambda: self.true + self.skew)
        self.ages = Ages(self.steady)

    def steady(self):
        return self.true - self.began

    def ask(self, there=0.01, back=0.01, date=http, ahead=0.0):
        """The server's clock is `ahead` of true time."""
        asked = self.steady()
        self.true += there
        said = date(self.true + ahead)
        self.true += back
        self.time.told(said, asked, self.steady())

    def asks(self, times, every=6.0, **how):
        for _ in range(times):
            self.true += every
            self.ask(**how)

    @property
    def off(self):
        return self.time.now() - self.true


SKEW = st.sampled_from([-300.0, 300.0, 0.0]) | st.floats(-40_000, 40_000)
ASKS = st.lists(
    st.tuples(st.floats(0.0, 90.0), st.floats(0.0, 0.5), st.floats(0.0, 0.5), st.sampled_from([0.0, 0.0, 300.0, -300.0])), min_size=1
)


def played(skew, asks, began):
    """Somebody may set its clock now and then."""
    machine = Machine(skew, began)
    for gap, there, back, jump in asks:
        machine.true += gap
        machine.skew += jump
        machine.ask(there, back)
    return machine


@given(
    skews=st.tuples(SKEW, SKEW), asks=st.tuples(ASKS, ASKS), began=st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), held=st.integers(0, 900)
)
def test_two_leaders_whatever_their_clocks_agree_within_two_seconds_how_long_a_canary_was_held(skews, asks, began, held):
    first, second = (played(*of) for of in zip(skews, asks, began, strict=True))
    first.true = second.true = max(first.true, second.true)
    assert max(abs(first.off), abs(second.off)) <= 1.0 + 1e-3
    written = stamp(first.time.now())
    first.ages.of(KEY, [written], first.time.now())
    first.true += held
    second.true += held
    ages = [leader.ages.of(KEY, [written], leader.time.now())[written] for leader in (first, second)]
    assert abs(ages[0] - ages[1]) <= 2.0 + 1e-3
    assert abs(ages[1] - held) <= 3.0  # and a second that the stamp was cut by


@given(asks=ASKS)
def test_within_a_process_time_does_not_go_back_while_the_server_s_clock_goes_on(asks):
    machine, last = Machine(300.0), 0.0
    machine.ask()
    for gap, there, back, jump in asks:
        machine.true += gap
        machine.skew += jump
        machine.ask(there, back)
        assert machine.time.now() >= last
        last = machine.time.now()


@pytest.mark.parametrize("said", [None, "", "yesterday", "Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 -2359"])
def test_without_a_date_that_can_be_one_the_own_clock_counts(said):
    machine = Machine(300.0)
    assert machine.off == pytest.approx(300.0)
    for _ in range(9):
        machine.asks(1, date=lambda _: said)
        assert machine.off == pytest.approx(300.0)


def test_the_first_answer_counts_though_it_was_slow_and_a_quick_one_is_better():
    machine = Machine(300.0)
    machine.ask(there=0.0, back=8.0)
    assert abs(machine.off) <= 5.0
    machine.asks(5, there=0.0, back=8.0)
    slow = machine.off
    assert abs(slow) <= 5.0
    machine.asks(2)
    assert abs(machine.off) < 1.0
    machine = Machine(300.0)
    machine.ask(there=20.0)
    assert machine.off == pytest.approx(300.0)


def test_a_date_that_stands_still_is_no_clock():
    """A cache's."""
    machine = Machine(300.0)
    frozen = http(BEGIN)
    machine.asks(1, date=lambda _: frozen)
    machine.asks(4, every=60.0, date=lambda _: frozen)
    assert machine.off == pytest.approx(300.0)
    machine.asks(3)
    assert abs(machine.off) < 1.0


def test_servers_whose_clocks_differ_have_no_time_between_them():
    machine = Machine(20.0)
    for ahead in (0.0, 7.0, -7.0, 0.0, 7.0):
        machine.asks(1, ahead=ahead)
    assert machine.off == pytest.approx(20.0)


def test_a_server_s_clock_that_is_set_is_followed_and_one_answer_of_another_one_is_not():
    machine = Machine(300.0)
    machine.asks(5)
    machine.asks(1, ahead=-600.0)
    machine.asks(1)
    assert abs(machine.off) < 1.0
    machine.asks(2, ahead=-600.0)
    machine.asks(1, ahead=-600.0)
    assert abs(machine.off + 600.0) < 1.0


def test_what_a_better_measure_takes_off_time_stands_still_for():
    machine = Machine()
    machine.ask(there=0.0, back=0.0, ahead=1.5)
    machine.asks(1, there=0.0, back=0.0)
    machine.true += 6.0
    before = machine.time.now()
    machine.ask(there=0.0, back=0.0)
    assert machine.time.now() == before
    machine.true += 0.75
    assert machine.time.now() == before
    machine.true += 0.75
    assert before + 0.4 < machine.time.now() < before + 0.6


@pytest.mark.parametrize("skews", [(300.0, -300.0), (-300.0, 300.0)])
def test_a_successor_waits_for_an_accelerator_as_long_as_its_predecessor_would_have(skews):
    """By clocks of their own the one would wait ten minutes longer, the other not at all."""
    made = world(gpu("H100", fallbackAfter="5m"), CPU, there=fleet(node("a", H100, whole(8)), pods=(pod("a", gpu=8),)))

    def leads(machine, later):
        machine.true = BEGIN + later
        machine.ask()
        made.operator = Reconciler(made.api, Settings(), machine.time.utc, Senses(fleet=lambda: made.fleet, ages=machine.ages))
        made.settle()

    first, second = (Machine(skew) for skew in skews)
    leads(first, 0.0)
    assert abs(datetime.fromisoformat(placement(made)["waiting"]["since"]).timestamp() - BEGIN) <= 2.0
    leads(second, 297.0)
    assert placement(made)["chosen"] == "gpu[0]"
    leads(second, 303.0)
    assert placement(made)["chosen"] == "cpu[1]"


@pytest.fixture
def told(monkeypatch):
    """An operator's core on a machine whose clock is 5 minutes ahead, and its client."""
    monkeypatch.setattr(pagoda_operator.serve.parts.time, "time", lambda: datetime.now(UTC).timestamp() + 300.0)
    return lambda server: core(Settings(), Alone(), lambda hooks: KubeCluster(Configuration(host=server.url), hooks, timeout=60.0))


async def test_an_answer_tells_the_time_and_an_error_does_not(told):
    """A proxy before the server makes errors of its own, with its own clock."""
    async with FailingServer(["502", "404", "200"], date=lambda: http(datetime.now(UTC).timestamp())) as server:
        made = told(server)
        with pytest.raises(ClusterError):
            await made.cluster.list(PODS, "ns", "a")
        assert await made.cluster.get(CONFIG_MAPS, "ns", "a") is None
        assert made.time.now() - datetime.now(UTC).timestamp() > 299
        await made.cluster.get(CONFIG_MAPS, "ns", "a")
        assert abs(made.time.now() - datetime.now(UTC).timestamp()) < 10
        assert abs((made.time.utc() - datetime.now(UTC)).total_seconds()) < 10
        await made.cluster.close()


async def test_behind_a_proxy_that_drops_dates_the_own_clock_counts(told):
    async with FailingServer() as server:
        made = told(server)
        await made.cluster.get(CONFIG_MAPS, "ns", "a")
        assert made.time.now() - datetime.now(UTC).timestamp() > 299
        await made.cluster.close()


CLOCKS = {("time", "time"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today"), ("datetime", "today")}


def test_nobody_else_asks_the_machine_what_time_it_is():
    """Two do: the Lease's renewTime is for people, and how long our own token was seen is by our own clock."""
    folder = Path(pagoda_operator.serve.parts.__file__).parents[1]
    holders = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py") if clocks(path))
    assert holders == ["lead/leader.py", "serve/parts.py", "talk/tokens.py"]
    assert clocks(folder / "serve/parts.py") == 1


def clocks(path):
    nodes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return sum((node.value.id, node.attr) in CLOCKS for node in nodes)
