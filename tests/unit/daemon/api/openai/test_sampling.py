"""The engine's Sampling made of a request: the model's defaults, ids of its vocabulary, bad words as ids."""

from types import MappingProxyType

import pytest
from pagoda_daemon.api.openai.sampling import SamplingFields, Wished, check_sampling, sampling_of
from pagoda_daemon.core.errors import BadRequest
from pagoda_daemon.core.sampling import NUMBERS, OFF
from support.engine.sampling_rows import not_off

VOCAB = 100
NUMBERS_OF_THE_MODEL = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}


class Text:
    """A model's text side: words of one letter, "x" of none, "Q" other behind a space, "long" of as many as it has letters."""

    defaults = MappingProxyType(NUMBERS_OF_THE_MODEL)
    stop_ids = (99,)

    def word_ids(self, word):
        spaced = word.startswith(" ")
        letters = [ord(letter) - 64 for letter in word.strip() if letter != "x"]
        if spaced and letters[:1] == [17]:
            return (50, *letters[1:])
        return (60, *letters) if spaced else tuple(letters)


def sampling(**fields):
    return sampling_of(SamplingFields(**fields), Wished(8, None, None), Text(), VOCAB)


def test_the_models_defaults_stand_where_the_request_is_silent():
    silent = sampling()
    assert (silent.temperature, silent.top_p, silent.top_k, silent.min_p, silent.repetition_penalty) == (0.6, 0.9, 20, 0.05, 1.1)
    said = sampling(temperature=0, top_p=1, top_k=-1, min_p=0, repetition_penalty=1)
    assert (said.temperature, said.top_p, said.top_k, said.min_p, said.repetition_penalty) == (0, 1, 0, 0, 1)


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), 1e39])
def test_a_top_n_sigma_that_is_no_positive_number_is_refused_with_what_is_accepted(value):
    with pytest.raises(BadRequest, match=r"^top_n_sigma must be above 0 and at most 3.40282e\+38, got \S+; leave it out to"):
        check_sampling(SamplingFields(top_n_sigma=value))
    check_sampling(SamplingFields(top_n_sigma=1e-30))
    assert sampling().top_n_sigma == 0


@pytest.mark.parametrize("name", NUMBERS)
def test_each_number_of_a_request_is_the_engines_under_the_same_name(name):
    assert getattr(sampling(**{name: not_off(name)}), name) == not_off(name) != OFF[name]


@pytest.mark.parametrize(
    ("fields", "stops"),
    [({}, (99,)), ({"stop_token_ids": [3]}, (99, 3)), ({"stop_token_ids": [3], "ignore_eos": True}, (3,)), ({"ignore_eos": True}, ())],
)
def test_stop_ids_are_the_models_and_the_requests(fields, stops):
    assert sampling(**fields).stop_token_ids == stops


def test_bad_words_are_banned_behind_a_space_too_where_that_is_another_token():
    assert sampling(bad_words=["A", " BC", "QB"]).bad_words == ((1,), (2, 3), (17, 2), (50, 2))
    with pytest.raises(BadRequest, match="'x' has no tokens"):
        sampling(bad_words=["x"])


@pytest.mark.parametrize("name", ["stop_token_ids", "allowed_token_ids", "logit_bias"])
def test_ids_outside_of_the_vocabulary_are_refused_by_name(name):
    sampling(**{name: {"99": 1.0} if name == "logit_bias" else [99]})
    with pytest.raises(BadRequest, match=f"{name} holds token id 100; token ids must be 0 to 99"):
        sampling(**{name: {"100": 1.0} if name == "logit_bias" else [0, 100]})


def test_allowed_ids_are_taken_once_each_and_an_empty_list_allows_all():
    assert sampling(allowed_token_ids=[3, 1, 3]).allowed_token_ids == (3, 1)
    assert sampling(allowed_token_ids=[]).allowed_token_ids is None
