"""Generate tokens with vLLM on CPUs, with a process for each tensor-parallel rank.

    python examples/clients/vllm_generate.py
    torchrun --nproc-per-node 2 examples/clients/vllm_generate.py
    torchrun --nproc-per-node 2 examples/clients/vllm_generate.py --backend gloo

The model is a small Llama with random weights, which are the same in each run: nothing is
downloaded, and every number of ranks generates the same tokens. With `--ranks 2`, vLLM starts the
ranks, as `vllm serve` does; for ringfold, the plugin `vllm_ringfold` must then be installed.
"""

import argparse
import os
import tempfile
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

PROMPTS = [[1, 2, 3, 4], [9, 8, 7]]
TOKENS = 12
# Common to all ways to start: few messages, and no requests to other hosts.
VARIABLES = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def save_model(folder: str) -> None:
    """Save a Llama of two layers, whose heads can be divided among two or four ranks."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=256,
    )
    LlamaForCausalLM(config).float().save_pretrained(folder)


def generate(folder: str, ranks: int, executor: str | None) -> list[Any]:
    """Return the most likely tokens after each prompt."""
    from vllm import LLM, SamplingParams

    model = LLM(
        model=folder,
        skip_tokenizer_init=True,
        tensor_parallel_size=ranks,
        distributed_executor_backend=executor,
        dtype="float32",
        enforce_eager=True,
        max_model_len=128,
        max_num_seqs=4,
    )
    prompts: Any = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    sampling = SamplingParams(temperature=0, max_tokens=TOKENS, detokenize=False)
    outputs = model.generate(prompts, sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", default="ringfold")
    parser.add_argument("--ranks", type=int, default=1, help="ranks that vLLM starts")
    options = parser.parse_args()

    os.environ |= VARIABLES
    rank, launched = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if launched > 1:
        # Each process has its own rank, and therefore its own engine.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if options.backend == "ringfold":
            import vllm_ringfold

            vllm_ringfold.register()
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        ranks = max(launched, options.ranks)
        executor = "external_launcher" if launched > 1 else "mp" if ranks > 1 else None
        tokens = generate(folder, ranks, executor)
    if rank == 0:
        print(f"{ranks} ranks: {tokens}", flush=True)


if __name__ == "__main__":
    main()
