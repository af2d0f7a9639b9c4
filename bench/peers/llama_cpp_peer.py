"""llama.cpp as a peer of bench/engine.py: `pip install llama-cpp-python gguf` in an environment of its own.

Writes the same weights as GGUF (bf16 or Q8_0) beside the model once. Reads one JSON job per line on stdin, {"prompts": [[ids]],
"tokens": n}, answers {"seconds": s, "tokens": n}. One prompt at a time: it is asked at n=1 only.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import gguf
import llama_cpp
import numpy as np

LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
OTHERS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def gguf_name(name: str) -> str:
    """The name that llama.cpp gives a tensor of a Llama checkpoint."""
    if name in OTHERS:
        return OTHERS[name]
    _, _, index, rest = name.split(".", 3)
    return f"blk.{index}.{LAYER[rest.removesuffix('.weight')]}.weight"


def pairs(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp turns neighbouring dimensions, checkpoints hold halves."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def convert(model: Path, kind: str) -> Path:
    """Once per model and kind."""
    target = model / f"{kind}.gguf"
    if target.exists():
        return target
    config = json.loads((model / "config.json").read_text())
    writer = gguf.GGUFWriter(target.with_suffix(".partial"), "llama")
    describe(writer, config)
    for name, values in tensors(model / "model.safetensors"):
        if "q_proj" in name or "k_proj" in name:
            values = pairs(values, config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"])  # noqa: PLW2901
        form = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else gguf.GGMLQuantizationType[kind]
        writer.add_tensor(gguf_name(name), gguf.quantize(np.ascontiguousarray(values), form), raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    target.with_suffix(".partial").rename(target)
    return target


def tensors(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """bf16 tensors of a safetensors file as fp32; numpy has no bf16, so they are widened by hand."""
    data = np.memmap(path, np.uint8, "r")
    start = 8 + int(data[:8].view(np.uint64)[0])
    header = json.loads(bytes(data[8:start]))
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            wide = data[start + begin : start + end].view(np.uint16).astype(np.uint32) << 16
            yield name, wide.view(np.float32).reshape(entry["shape"])


def describe(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


def generate(llama: llama_cpp.Llama, prompt: list[int], tokens: int) -> int:
    """Greedy, by the low-level calls: no sampler chain, no text."""
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(llama.ctx), True)
    fed = prompt
    for _ in range(tokens):
        ids = (llama_cpp.llama_token * len(fed))(*fed)
        if llama_cpp.llama_decode(llama.ctx, llama_cpp.llama_batch_get_one(ids, len(fed))) != 0:
            raise RuntimeError("llama.cpp could not compute a step")
        logits = llama_cpp.llama_get_logits_ith(llama.ctx, -1)
        fed = [int(np.ctypeslib.as_array(logits, (llama.n_vocab(),)).argmax())]
    return tokens


def main() -> None:
    model, quantization = Path(sys.argv[1]), sys.argv[2]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    path = convert(model, "BF16" if quantization == "none" else "Q8_0")
    begun = time.perf_counter()
    threads = len(os.sched_getaffinity(0))
    llama = llama_cpp.Llama(str(path), n_ctx=512, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False)
    print(json.dumps({"ready": True, "start_seconds": time.perf_counter() - begun}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        begun = time.perf_counter()
        done = sum(generate(llama, prompt, job["tokens"]) for prompt in job["prompts"])
        print(json.dumps({"seconds": time.perf_counter() - begun, "tokens": done}), file=answers)


if __name__ == "__main__":
    main()
