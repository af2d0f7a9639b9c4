"""What is told of blocks to the outside, folded by a reader, is what a naive memory says they hold: KV events and prefixes of texts."""

from __future__ import annotations

import ast
import random

import numpy as np
import pytest
from pagoda_contracts.prefix import Scope, token_hashes
from pagoda_daemon.health.prefixes import PrefixBook
from pagoda_daemon.kv.chain import Chain
from pagoda_daemon.kv.ledger import BlockLedger, Removed, Stored
from pagoda_daemon.kv.text_prefixes import TextPrefixes, block_ends
from support.engine import kv_model
from support.engine.kv_model import LONGEST, ROWS, NaiveDevice


def drive(device: NaiveDevice, seed: int, steps: int) -> None:
    """One random thing after another."""
    draw = random.Random(seed)
    for _ in range(steps):
        row = draw.randrange(ROWS)
        if row not in device.rows:
            device.open(row, draw.choice("ab"), [draw.getrandbits(1) for _ in range(draw.randint(1, LONGEST - 4))])
        elif draw.random() < 0.3:
            device.close(row)
        elif draw.random() < 0.02:
            device.kv.reset()
        else:
            device.feed(row, draw.randint(1, 9), [draw.getrandbits(1) for _ in range(9)])


def fold(known: dict[int, tuple[int | None, tuple[int, ...]]], events: list[Stored | Removed], block: int) -> None:
    """As a reader would: every parent must be known or have been, every stored block is new, every removed one was there."""
    for event in events:
        if isinstance(event, Removed):
            for gone in event.hashes:
                del known[gone]
            continue
        assert len(event.token_ids) == block * len(event.hashes)
        parent = event.parent
        for place, one in enumerate(event.hashes):
            assert one not in known
            known[one] = (parent, event.token_ids[place * block : (place + 1) * block])
            parent = one


def number(tenant: str, tokens: tuple[int, ...], block: int) -> int:
    return int.from_bytes(token_hashes(Scope(tenant, "model"), tokens, block)[-1][8:], "big")


@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("seed", range(4))
def test_events_describe_exactly_which_contents_are_known(seed, window):
    device = NaiveDevice(18, window=window)
    device.kv.ledger = BlockLedger(device.block)
    known: dict[int, tuple[int | None, tuple[int, ...]]] = {}
    for turn in range(60):
        drive(device, 1000 * seed + turn, 8)
        fold(known, device.kv.ledger.take(), device.block)
        held = [device.written[block] for block in range(18) if block in device.kv.index and device.kv.index._fill[block] == device.block]
        assert known.keys() == {number(tenant, tokens, device.block) for tenant, tokens in held}
        for tenant, tokens in held:
            parent, ids = known[number(tenant, tokens, device.block)]
            assert ids == tokens[-device.block :]
            before = tokens[: -device.block]
            assert parent == (number(tenant, before, device.block) if before else None)
    assert device.reused
    assert device.refused, "nothing was ever evicted"


def test_without_a_ledger_nothing_is_named_for_it():
    device = NaiveDevice(18)
    device.open(0, "a", [0, 1] * 8)
    device.feed(0, 16, [])
    assert device.kv.ledger is None
    assert device.kv.index.named == 0


def name(tenant, tokens):
    return repr((tenant, tuple(tokens))).encode()


class TiedRow(kv_model.Row):
    """Its gateway names every second token's beginning."""

    def __init__(self, tenant, tokens, block):
        super().__init__(tenant, tokens, block)
        self.chain.text_prefixes = block_ends(((name(tenant, tokens[:end]), end) for end in range(1, len(tokens) + 1, 2)), block)


@pytest.mark.parametrize("most", [1000, 7])
@pytest.mark.parametrize("seed", range(4))
def test_a_tied_text_is_resident_as_long_as_its_block_holds_its_tokens(seed, most, monkeypatch):
    monkeypatch.setattr(kv_model, "Row", TiedRow)
    device = NaiveDevice(18)
    device.kv.text_prefixes = TextPrefixes(most)
    book = PrefixBook()
    reader = book.open()
    heard: set[bytes] = set()
    settled = 0
    for turn in range(60):
        drive(device, 77 * seed + turn, 8)
        text_prefixes = device.kv.text_prefixes
        book.note(*text_prefixes.take())
        news = reader.take()
        assert news.reset == (turn == 0)
        heard = (heard | set(news.resident)) - set(news.evicted)
        assert heard == set(book.resident) == set(text_prefixes._block_of)
        assert len(text_prefixes) <= most
        for text, block in text_prefixes._block_of.items():
            tenant, tokens = ast.literal_eval(text.decode())
            full = tokens[: len(tokens) // device.block * device.block]
            assert device.written[block] == (tenant, full)
            assert block in device.kv.index
        settled = max(settled, len(text_prefixes))
    assert settled >= 7


def test_what_ends_within_the_first_block_is_tied_to_none():
    assert block_ends([(b"a", 15), (b"b", 16), (b"c", 33), (b"d", 48)], 16) == ((0, b"b"), (1, b"c"), (2, b"d"))


def test_a_preempted_requests_ties_are_settled_when_it_is_seated_again():
    text_prefixes, chain = TextPrefixes(), Chain.of(Scope("a", "m"), 4)
    chain.text_prefixes = block_ends([(b"x", 4), (b"y", 12)], 4)
    text_prefixes.settle(chain, [7], 0)
    assert text_prefixes.take() == ((b"x",), ())
    text_prefixes.settle(chain, [7, 8, 9], 0)
    assert text_prefixes.take() == ((b"y",), ())
    text_prefixes.lost([9, 7, 1])
    assert text_prefixes.take() == ((), (b"y", b"x"))
    assert len(text_prefixes) == 0


def test_a_new_reader_begins_with_everything_and_a_slow_one_begins_anew(monkeypatch):
    monkeypatch.setattr("pagoda_daemon.health.prefixes.PER_FRAME", 2)
    monkeypatch.setattr("pagoda_daemon.health.prefixes.MOST_PENDING", 5)
    book = PrefixBook()
    names = [bytes([at]) for at in range(9)]
    book.note(names[:3], [])
    reader = book.open()
    assert reader.take() == (True, (names[0], names[1]), ())
    assert reader.behind
    assert reader.take() == (False, (names[2],), ())
    assert not reader.behind
    assert reader.take() == (False, (), ())
    book.note([], names[:1])
    book.note(names[:1], names[1:2])
    assert reader.take() == (False, (names[0],), (names[1],))
    book.note(names[3:], names[:3])
    assert reader.behind
    change = reader.take()
    assert change.reset, "more was pending than is kept for a reader"
    seen = set(change.resident)
    while reader.behind:
        seen |= set(reader.take().resident)
    assert seen == set(names[3:])
    book.close(reader)
    book.note(names, [])
    assert not reader.behind


def test_the_last_word_on_a_name_counts():
    book = PrefixBook()
    reader = book.open()
    reader.take()
    book.note([b"a"], [])
    book.note([], [b"a"])
    assert reader.take() == (False, (), (b"a",))
    assert not book.resident


def test_a_content_that_two_blocks_hold_is_stored_once_and_removed_with_the_last():
    ledger = BlockLedger(4)
    tokens = np.arange(12, dtype=np.int32)
    for blocks in ([0, 1, 2], [3, 1, 4]):
        ledger.stored(Chain.of(Scope("a", "m"), 4), blocks, 0, tokens)
    [first] = ledger.take()
    assert (len(first.hashes), first.parent, first.token_ids) == (3, None, tuple(range(12)))
    ledger.removed([0, 2, 9])
    assert ledger.take() == []
    ledger.removed([3, 1])
    assert ledger.take() == [Removed(first.hashes[:2])]


def test_only_the_new_part_of_a_chain_is_published_after_the_known_part():
    ledger = BlockLedger(4)
    chain = Chain.of(Scope("a", "m"), 4)
    ledger.stored(chain, [0], 0, np.arange(4, dtype=np.int32))
    ledger.stored(chain, [1, 2], 1, np.arange(12, dtype=np.int32))
    first, then = ledger.take()
    assert then == Stored(tuple(int.from_bytes(name[8:], "big") for name in chain.names[1:]), first.hashes[0], tuple(range(4, 12)))
