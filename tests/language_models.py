"""Small random language models on disk, in Hugging Face format, so that the real loading code runs offline."""

from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

END = "<|endoftext|>"
TEXT = ["We must go on together, my fellow citizens.", "The people ask what the state of the union is.", "I think so."]


@cache
def make_tokenizer(pieces: int = 300) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, which can encode any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=pieces, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END)


def write_gpt2(folder: Path, *, width: int = 16, tied: bool = True, positions: int = 64) -> Path:
    tokenizer = make_tokenizer()
    set_seed(1)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=positions, n_embd=width, n_layer=2, n_head=4,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, tie_word_embeddings=tied,
    )  # fmt: skip
    return _write(GPT2LMHeadModel(config), folder)


def write_llama(folder: Path, *, width: int = 16) -> Path:
    tokenizer = make_tokenizer()
    set_seed(1)
    config = LlamaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=64, hidden_size=width, intermediate_size=2 * width,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    return _write(LlamaForCausalLM(config), folder)


def _write(model: GPT2LMHeadModel | LlamaForCausalLM, folder: Path) -> Path:
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder
