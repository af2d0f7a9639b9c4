"""Incremental detokenisation: of any ids, however they come, the joined text is the tokenizer's own decoding of all of them."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pagoda_daemon.text.detokenize import ByteLevelDetokenizer, FallbackDetokenizer, WindowDetokenizer, detokenizers
from pagoda_daemon.text.tokens import ModelText
from support.engine.toy_model import EOS, VOCAB, byte_characters, tiny_model_dir
from tokenizers import AddedToken, Tokenizer, decoders, models

BYTES = 256
SPECIAL, ODD, SPACED, PLAIN, UNKNOWN = range(BYTES + 3, BYTES + 8)
WORDS = ("▁upon", "▁a", "time")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return ModelText(tiny_model_dir(tmp_path_factory.mktemp("model") / "toy"))


def with_added(vocabulary, decoder, **options):
    """256 bytes, three words, a special token, and added ones: characters that stand for no byte, a space, plain letters."""
    tokenizer = Tokenizer(models.BPE(vocab={token: at for at, token in enumerate(vocabulary)}, merges=[], **options))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    tokenizer.add_tokens([AddedToken("é→", special=False), AddedToken(" w ", special=False), AddedToken("word", special=False)])
    return tokenizer


def fallback_tokenizer(*after):
    """As Llama 2 has it: words with ▁, and a token for each byte."""
    vocabulary = [*(f"<0x{byte:02X}>" for byte in range(BYTES)), *WORDS]
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *after]
    return with_added(vocabulary, decoders.Sequence(parts), byte_fallback=True)


TOKENIZERS = {
    "byte-level": (with_added([*byte_characters(), "Ġupon", "Ġa", "time"], decoders.ByteLevel()), ByteLevelDetokenizer),
    "fallback": (fallback_tokenizer(), FallbackDetokenizer),
    "fallback, stripped": (fallback_tokenizer(decoders.Strip(" ", 1, 0)), FallbackDetokenizer),
}


def kind(name):
    tokenizer, _ = TOKENIZERS[name]
    return tokenizer, detokenizers(tokenizer, tokenizer.decode, skip_special=True)


def split(ids, sizes):
    at = 0
    for size in sizes:
        yield ids[at : at + size]
        at += size
    yield ids[at:]


def joined(detokenizer, ids, sizes=()):
    deltas = [detokenizer.push(part) for part in split(ids, sizes)]
    return "".join(deltas) + detokenizer.flush()


ANY = st.lists(st.integers(0, UNKNOWN), max_size=60)
ENDS = [0x20, 0x61, 0x80, 0x9F, 0xA9, 0xC3, 0xE2, 0xED, 0xF0, 0xF4, 0xFF, SPECIAL, ODD, SPACED, BYTES]  # of characters, and half ones
HARD = st.lists(st.sampled_from(ENDS), max_size=60)
SIZES = st.lists(st.integers(0, 5), max_size=30)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(ids=ANY | HARD, sizes=SIZES)
def test_deltas_of_any_ids_join_to_the_full_decoding(name, ids, sizes):
    tokenizer, make = kind(name)
    assert isinstance(make(), TOKENIZERS[name][1])
    assert joined(make(), ids, sizes) == tokenizer.decode(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(ids=ANY | HARD, sizes=SIZES)
def test_deltas_that_show_special_tokens_join_to_the_decoding_that_does(name, ids, sizes):
    tokenizer, _ = TOKENIZERS[name]
    make = detokenizers(tokenizer, tokenizer.decode, skip_special=False)
    assert joined(make(), ids, sizes) == tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.binary(max_size=64))
def test_deltas_of_any_bytes_join_to_the_full_decoding(name, data):
    tokenizer, make = kind(name)
    assert joined(make(), list(data), [1] * len(data)) == tokenizer.decode(list(data))


@pytest.mark.parametrize("name", TOKENIZERS)
@given(content=st.text(st.characters(exclude_characters="\ufffd", exclude_categories=["Cs"]), max_size=16))
def test_no_delta_holds_half_a_character(name, content):
    tokenizer, make = kind(name)
    detokenizer = make()
    deltas = [*(detokenizer.push([byte]) for byte in content.encode()), detokenizer.flush()]
    assert "".join(deltas) == tokenizer.decode(list(content.encode()))
    assert not any("\ufffd" in delta for delta in deltas)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_character_of_bytes_is_out_with_its_last_byte(content):
    detokenizer = kind("byte-level")[1]()
    for character in content:
        *first, last = character.encode()
        assert detokenizer.push(first) == ""
        assert detokenizer.push([last]) == character


def test_a_broken_character_is_shown_as_soon_as_it_is_known_to_be_one():
    detokenizer = kind("byte-level")[1]()
    assert [detokenizer.push([byte]) for byte in (0xF0, 0x9F, 0x61, 0x80)] == ["", "", "\ufffda", "\ufffd"]


def test_a_run_of_fallback_bytes_is_text_as_a_whole_or_not_at_all():
    detokenizer = kind("fallback")[1]()
    whole, broken = [*"é".encode(), BYTES + 2], [*"é".encode(), 0x80, 0x61, BYTES + 2]
    assert [detokenizer.push([token]) for token in whole] == ["", "", "étime"]
    assert [detokenizer.push([token]) for token in broken] == ["", "", "\ufffd" * 3, "\ufffd", "time"]


def test_a_long_run_of_fallback_bytes_is_shown_as_it_comes():
    detokenizer = kind("fallback")[1]()
    content = "日本語" * 60
    deltas = [detokenizer.push([byte]) for byte in content.encode()]
    whole = (len(content.encode()[: at + 1].decode(errors="ignore")) for at in range(len(deltas)))
    behind = [there - shown for there, shown in zip(whole, itertools.accumulate(map(len, deltas)), strict=True)]
    assert max(behind) <= 64 // 3 + 1
    assert "".join(deltas) + detokenizer.flush() == content
    assert not any("\ufffd" in delta for delta in deltas)


def test_only_the_first_space_of_an_answer_is_stripped():
    detokenizer = kind("fallback, stripped")[1]()
    assert [detokenizer.push([token]) for token in (SPECIAL, BYTES + 1, BYTES + 1, BYTES)] == ["", "a", " a", " upon"]


OTHER_SEQUENCE = decoders.Sequence([decoders.Replace("_", " "), decoders.ByteFallback(), decoders.Fuse()])
OTHERS = (decoders.Metaspace(), decoders.WordPiece(), None, OTHER_SEQUENCE)


@pytest.mark.parametrize("decoder", OTHERS, ids=["metaspace", "word-piece", "none", "another-sequence"])
def test_a_decoder_of_another_kind_is_asked_itself(decoder):
    tokenizer = with_added(["▁a", "##b", "_c", *WORDS], decoder)
    make = detokenizers(tokenizer, tokenizer.decode, skip_special=True)
    assert isinstance(make(), WindowDetokenizer)


@given(st.lists(st.integers(0, VOCAB - 1), max_size=80), SIZES)
def test_the_windows_deltas_of_any_ids_join_to_the_full_text(text, ids, sizes):
    assert joined(WindowDetokenizer(text.decode), ids, sizes) == text.decode(ids)


@given(st.lists(st.integers(0, 255), max_size=60) | st.lists(st.sampled_from([*range(0x80, 0x84), 0xE2, 0xF0, EOS]), max_size=300))
def test_the_windows_deltas_of_any_bytes_join_to_the_full_text(text, ids):
    assert joined(WindowDetokenizer(text.decode), ids, [1] * len(ids)) == text.decode(ids)


@given(st.lists(st.sampled_from([*WORDS, "é", "😀", "ß", "\u200d"]), max_size=40))
def test_the_window_keeps_spaces_and_whole_characters(words):
    tokenizer = kind("fallback, stripped")[0]
    ids = [at for word in words for at in ([tokenizer.token_to_id(word)] if word in WORDS else word.encode())]
    detokenizer = WindowDetokenizer(tokenizer.decode)
    deltas = [detokenizer.push([token]) for token in ids]
    assert "".join(deltas) + detokenizer.flush() == "".join(words).replace("▁", " ").removeprefix(" ")
    assert not any("\ufffd" in delta for delta in deltas)


def test_the_window_does_not_grow(text):
    longest = 0

    def decode(ids):
        nonlocal longest
        longest = max(longest, len(ids))
        return text.decode(ids)

    for pattern, most in (([300], 30), ([EOS], 80), ([VOCAB + 7], 80), ([0x80], 80), ([0xF0, EOS], 80)):
        ids = pattern * (1000 // len(pattern))
        longest = 0
        assert joined(WindowDetokenizer(decode), ids, [1] * len(ids)) == text.decode(ids)
        assert longest < most


def test_the_window_shows_a_long_run_of_bytes_that_form_no_character_as_it_comes():
    tokenizer = kind("fallback, stripped")[0]
    detokenizer = WindowDetokenizer(tokenizer.decode)
    ids = [BYTES + 1, *[0x80] * 500, BYTES]
    deltas = [detokenizer.push([token]) for token in ids]
    assert len("".join(deltas[:-1])) > 400
    assert "".join(deltas) + detokenizer.flush() == tokenizer.decode(ids)
