"""GPT-2 and BERT-like models: layer norms and biases everywhere, learned positions, MLPs of two matrices. Called by `families`."""

from __future__ import annotations

from pagoda_sizing.config import Config
from pagoda_sizing.errors import BadConfig
from pagoda_sizing.model import Attention, Model, Parameters


def _block(hidden: int, inner: int) -> tuple[int, int]:
    """Matrices, and biases with two layer norms, of one layer."""
    return 4 * hidden * hidden + 2 * hidden * inner, 4 * hidden + inner + hidden + 2 * 2 * hidden


def _heads(hidden: int, heads: int) -> Attention:
    if hidden % heads:
        raise BadConfig(f"config.json: a hidden size of {hidden} is not a multiple of {heads} heads")
    return Attention(heads, heads, hidden // heads, hidden // heads)


def gpt2(config: Config) -> Model:
    """The output matrix is the embedding."""
    hidden, layers, places = config.number("n_embd"), config.number("n_layer"), config.number("n_positions")
    matrices, small = _block(hidden, config.optional("n_inner") or 4 * hidden)
    return Model(
        kind="gpt2",
        hidden=hidden,
        max_context=places,
        parameters=Parameters(
            embedding=config.number("vocab_size") * hidden,
            positions=places * hidden,
            dense=layers * matrices,
            small=layers * small + 2 * hidden,
        ),
        attention=_heads(hidden, config.number("n_head")),
        windows=(None,) * layers,
    )


def bert(config: Config) -> Model:
    """Embeddings, layers and pooler: what an embedding service loads. Task heads (below 0.6 % of BERT-base) are not counted."""
    hidden, layers = config.number("hidden_size"), config.number("num_hidden_layers")
    places, kinds = config.number("max_position_embeddings"), config.number("type_vocab_size")
    matrices, small = _block(hidden, config.number("intermediate_size"))
    return Model(
        kind=config.text("model_type") or "bert",
        hidden=hidden,
        max_context=places,
        parameters=Parameters(
            embedding=config.number("vocab_size") * hidden,
            positions=(places + kinds) * hidden,
            dense=layers * matrices + hidden * hidden,
            small=layers * small + 2 * hidden + hidden,
        ),
        attention=_heads(hidden, config.number("num_attention_heads")),
        windows=(None,) * layers,
        decodes=False,
    )
