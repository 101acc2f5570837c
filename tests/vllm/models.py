"""Makes the tiny models that the engine tests run: random weights from a fixed seed, no download.

The weights are drawn wider than usual and kept in single precision: with the default, zeroing a
whole block of a model's KV cache changes hardly a token, and a test of equal tokens would prove
nothing.

Usage: `python models.py {llama,hybrid,mla} DEST`
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEED = 20_260_101
VOCABULARY = 1024
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "max_position_embeddings": 8192,
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "dtype": "float32",
}


def llama() -> PreTrainedModel:
    """Full attention: one KV-cache group."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **COMMON,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=256,
    )
    return LlamaForCausalLM(config)


def hybrid() -> PreTrainedModel:
    """Sliding windows and full attention: three KV-cache groups that overlay one another."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        **COMMON,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=256,
        sliding_window=512,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"] * 2,
    )
    return Gemma3ForCausalLM(config)


def mla() -> PreTrainedModel:
    """Latent attention: one vector for all heads. The CPU takes heads of 576 alone."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        **COMMON,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_rope_head_dim=64,
        qk_nope_head_dim=32,
        v_head_dim=32,
        intermediate_size=256,
        # As many dense layers as there are: the experts are in none.
        first_k_dense_replace=4,
        n_routed_experts=2,
        num_experts_per_tok=1,
        n_shared_experts=1,
    )
    return DeepseekV2ForCausalLM(config)


MODELS: dict[str, Callable[[], PreTrainedModel]] = {"llama": llama, "hybrid": hybrid, "mla": mla}


def make(name: str, destination: Path) -> Path:
    """Save a model with a tokenizer that has a word for each token; a complete one is kept."""
    import torch

    complete = destination / "complete.json"
    made_from = {"model": name, "seed": SEED, "torch": torch.__version__, "version": 1}
    if complete.exists() and json.loads(complete.read_text()) == made_from:
        return destination
    torch.manual_seed(SEED)
    model = MODELS[name]().to(torch.float32)
    destination.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(destination)
    _tokenizer().save_pretrained(destination)
    complete.write_text(json.dumps(made_from))
    return destination


def _tokenizer() -> object:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = {f"w{index}": index for index in range(3, VOCABULARY)}
    words |= {"<s>": 0, "</s>": 1, "<pad>": 2}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<pad>"))  # noqa: S106 - a word
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",  # noqa: S106 - a word
        eos_token="</s>",  # noqa: S106 - a word
        pad_token="<pad>",  # noqa: S106 - a word
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("destination", type=Path)
    arguments = parser.parse_args()
    print(make(arguments.model, arguments.destination))
