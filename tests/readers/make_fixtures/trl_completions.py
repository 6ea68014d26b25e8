"""``python trl_completions.py`` with trl 1.16.0: a real GRPO run of a model of a few thousand weights, two reward
functions, two steps."""

import shutil
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

OUT = Path(__file__).resolve().parents[1] / "fixtures" / "trl"


def starts_with_a(completions, **kwargs):
    """1 if it starts with a, None for the second of each four."""
    return [
        None if i % 4 == 1 else float((c if isinstance(c, str) else c[0]["content"]).startswith("a"))
        for i, c in enumerate(completions)
    ]


def short(completions, log_extra=None, **kwargs):
    """A quarter, always; logs an extra column of text."""
    if log_extra is not None:
        log_extra("note", [f"n{i}" for i in range(len(completions))])
    return [0.25] * len(completions)


def main():
    torch.manual_seed(0)
    words = ["<pad>", "<eos>", *"abcdefgh", "user", "assistant", ":"]
    raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + ' : ' + m['content'] + ' ' }}{% endfor %}assistant : "
    )
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    prompts = [[{"role": "user", "content": "a b"}], [{"role": "user", "content": "c d"}]]
    shutil.rmtree(OUT, ignore_errors=True)
    with tempfile.TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=3,
            max_steps=4,
            steps_per_generation=2,
            logging_steps=1,
            log_completions=True,
            report_to=[],
            use_cpu=True,
            bf16=False,
            save_strategy="no",
            seed=0,
        )
        trainer = GRPOTrainer(
            Qwen2ForCausalLM(config),
            [starts_with_a, short],
            args=args,
            train_dataset=Dataset.from_dict({"prompt": prompts * 8}),
            processing_class=tokenizer,
        )
        trainer.train()
        shutil.copytree(Path(out) / "completions", OUT)


main()
