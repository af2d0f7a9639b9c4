"""PagodaLM: the offline engine as a model of lm-eval, under the name `pagoda`.

`python -P -m pagoda_daemon.offline.lm_eval run --model pagoda --model_args pretrained=DIR …` is lm-eval's own command line with this
model in it. Importing this module needs lm-eval; nothing else of the daemon imports it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, maybe_truncate, normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from pagoda_daemon.core.errors import ConfigRejected
from pagoda_daemon.offline.engine import Engine
from pagoda_daemon.offline.results import Result
from pagoda_daemon.offline.sampling import Sampling
from pagoda_daemon.text.tokens import ChatShape

_UNUSED: Final = ("batch_size", "max_batch_size")  # what lm-eval gives to every model: the engine batches by itself
_RESERVED: Final = 1  # of the context: the engine keeps room for one token behind each prompt

Encoded = tuple[tuple[str, str] | None, list[int], list[int]]
"""A key for lm-eval's cache, the ids of a context, and the ids of what follows it."""


@register_model("pagoda")  # type: ignore[untyped-decorator, unused-ignore]
class PagodaLM(TemplateLM):  # type: ignore[misc]
    """`pretrained` is the model; `fields` are those of `Engine`. The other arguments are lm-eval's, as its `hf` model has them."""

    def __init__(
        self,
        pretrained: str,
        *,
        max_gen_toks: int = 256,
        add_bos_token: bool | None = None,
        prefix_token_id: int | None = None,
        device: str | None = None,
        **fields: Any,
    ) -> None:
        super().__init__()
        given = {name: value for name, value in fields.items() if name not in _UNUSED}
        # lm-eval says cuda:0 where its user says nothing, whatever there is.
        self.engine = Engine(pretrained, device=device if device in ("cpu", "cuda") else "auto", **given)
        self.max_length = self.engine.max_model_len - _RESERVED
        self._name, self._add_bos, self._max_gen_toks = pretrained, add_bos_token, max_gen_toks
        named, ends = self.engine.text.named_id, self.engine.text.stop_ids
        prefix = (prefix_token_id, named("bos_token"), named("eos_token"), *ends)
        self._end = next((one for one in (named("eos_token"), *ends) if one is not None), None)
        self._prefix = next((one for one in prefix if one is not None), None)

    @property
    def eot_token_id(self) -> int:
        return _known(self._end, "eos_token")

    @property
    def prefix_token_id(self) -> int:
        return _known(self._prefix, "bos_token or eos_token")

    @property
    def tokenizer_name(self) -> str:
        return self._name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """As `hf`: with the ids that the tokenizer adds, unless the text begins with such a token already, as a chat's does."""
        special = add_special_tokens if add_special_tokens is not None else self._add_bos
        if add_special_tokens is None and string.startswith(self.engine.text.decode((self.prefix_token_id,), skip_special=False)):
            special = False
        return list(self.engine.tokenize(string, special=special is not False))

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        shape = ChatShape(answer_follows=add_generation_prompt, continue_last=not add_generation_prompt)
        return self.engine.text.chat_text(chat_history, self.engine.max_model_len, shape)

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        windows = [self._windows(request.args[0]) for request in requests]
        scores = iter(self._loglikelihood_tokens([one for several in windows for one in several], disable_tqdm=disable_tqdm))
        found = []
        for request, several in zip(requests, windows, strict=True):
            found.append(sum(next(scores)[0] for _ in several))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, found[-1])
        return found

    def _windows(self, text: str) -> list[Encoded]:
        ids, prefix = self.tok_encode(text), self.prefix_token_id
        windows = get_rolling_token_windows(token_list=ids, prefix_token=prefix, max_seq_len=self.max_length - 1, context_len=1)
        return [(None, *make_disjoint_window(one)) for one in windows]

    def _loglikelihood_tokens(self, requests: Sequence[Encoded], disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        prompts = [(context + following)[-self.max_length :] for _, context, following in requests]
        results = self.engine.score(prompts, progress=False if disable_tqdm else None)
        found = [_scored(result, len(following)) for result, (_, _, following) in zip(results, requests, strict=True)]
        for request, one in zip(requests, found, strict=True):
            if request[0] is not None:  # None: a window of a longer text
                self.cache_hook.add_partial("loglikelihood", request[0], one)
        return found

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        asked = [self._asked(*request.args) for request in requests]
        results = self.engine.generate([ids for ids, _ in asked], [how for _, how in asked], progress=False if disable_tqdm else None)
        found = []
        for request, (_, how), result in zip(requests, asked, results, strict=True):
            found.append(postprocess_generated_text(result.text, list(how.stops), None))
            self.cache_hook.add_partial("generate_until", request.args, found[-1])
        return found

    def _asked(self, context: str, given: dict[str, Any]) -> tuple[list[int], Sampling]:
        said = normalize_gen_kwargs(given, default_max_gen_toks=self._max_gen_toks)
        until = [one for one in handle_stop_sequences(said.pop("until", None), eos=None) if one]
        said.pop("do_sample", None)
        most = said.pop("max_gen_toks")
        ids, most = maybe_truncate(self.tok_encode(context), max_gen_toks=most, max_model_len=self.engine.max_model_len)
        return ids, Sampling(max_tokens=most, stop=until, stop_token_ids=[self.eot_token_id], **said)


def _scored(result: Result, following: int) -> tuple[float, bool]:
    """Of the last `following` tokens: the sum of their log-probabilities, and whether each was the best."""
    scores = [one for one in result.prompt_logprobs[len(result.prompt_logprobs) - following :] if one is not None]
    return sum(one.logprob for one in scores), all(one.rank == 1 for one in scores)


def _known(token_id: int | None, names: str) -> int:
    if token_id is None:
        raise ConfigRejected(f"the model's tokenizer has no {names}; give prefix_token_id")
    return token_id


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
