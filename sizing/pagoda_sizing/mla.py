"""DeepSeek-V2 and V3: multi-head latent attention, shared and routed experts. Called by `families`.

The extra prediction layer of V3 (num_nextn_predict_layers, 11.5 B parameters) is not counted: nothing here serves it.
"""

from __future__ import annotations

from pagoda_sizing.config import Config
from pagoda_sizing.errors import BadConfig
from pagoda_sizing.model import Attention, Experts, Model, Parameters


def deepseek(config: Config) -> Model:
    """The model without its multi-token prediction module."""
    hidden, layers = config.number("hidden_size"), config.number("num_hidden_layers")
    heads, latent, rotary = config.number("num_attention_heads"), config.number("kv_lora_rank"), config.number("qk_rope_head_dim")
    attention = Attention(heads, heads, config.number("qk_nope_head_dim") + rotary, config.number("v_head_dim"), latent=latent + rotary)
    matrices, small = _projections(config, attention, hidden)
    dense_mlp, experts, routers, routing = _mlp(config, hidden, layers)
    vocabulary = config.number("vocab_size") * hidden
    return Model(
        kind=config.text("model_type") or "deepseek",
        hidden=hidden,
        max_context=config.number("max_position_embeddings"),
        parameters=Parameters(
            embedding=vocabulary,
            head=0 if config.flag("tie_word_embeddings") else vocabulary,
            dense=layers * matrices + dense_mlp,
            experts=experts,
            small=layers * (small + 2 * hidden) + routers + hidden,
        ),
        attention=attention,
        windows=(None,) * layers,
        experts=routing,
    )


def _projections(config: Config, attention: Attention, hidden: int) -> tuple[int, int]:
    """One layer's attention: matrices, and norms with biases."""
    latent, rotary = config.number("kv_lora_rank"), config.number("qk_rope_head_dim")
    low, bias = config.optional("q_lora_rank"), config.flag("attention_bias")
    wide = attention.heads * attention.query_dim
    query = hidden * wide if low is None else low * (hidden + wide)
    out_of_latent = latent * attention.heads * (config.number("qk_nope_head_dim") + attention.value_dim)
    key_value = hidden * (latent + rotary) + out_of_latent
    output = attention.heads * attention.value_dim * hidden
    biases = (low or 0) + latent + rotary + hidden if bias else 0
    return query + key_value + output, (low or 0) + latent + biases


def _mlp(config: Config, hidden: int, layers: int) -> tuple[int, int, int, Experts]:
    """Parameters of dense and shared MLPs, of routed experts and of routers, and the routing."""
    count, chosen = config.number("n_routed_experts"), config.number("num_experts_per_tok")
    if chosen > count:
        raise BadConfig(f"config.json: num_experts_per_tok {chosen} is more than the {count} experts there are")
    first, every = config.number("first_k_dense_replace", minimum=0), config.optional("moe_layer_freq") or 1
    sparse = sum(1 for layer in range(layers) if layer >= first and layer % every == 0)
    expert = 3 * hidden * config.number("moe_intermediate_size")
    shared = (config.optional("n_shared_experts", minimum=0) or 0) * expert
    dense = (layers - sparse) * 3 * hidden * config.number("intermediate_size") + sparse * shared
    correction = count if config.text("topk_method") == "noaux_tc" else 0
    return dense, sparse * count * expert, sparse * (count * hidden + correction), Experts(count, chosen)
