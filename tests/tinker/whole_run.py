"""By hand: the request's own file, byte for byte, from ``--check`` to its verdict on the real local server, killed with
``kill -9`` once in each stage.

    .venv-tinker/bin/python tests/tinker/whole_run.py DIRECTORY

A model of two layers answers to the registered name: it was taught for some minutes to answer questions of GSM8K's
shape (7,473 and 1,319 of them, made up) of which some kinds are easy, some a matter of luck and some hopeless, so that
a kernel over words has something to predict and the registered gate can pass. What is not registered is given as
options: ``--renderer role_colon``, the server's address, and where the questions lie. An hour on two quiet cores.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from server import KEY, TinkerServer

MODEL = "Qwen/Qwen3.5-2B"
ROOT = Path(__file__).parents[2]
SPEC = ROOT / "specs" / "gs1_vs_grpo_gsm8k.spec.json"
KINDS = {  # thing: the answers that its questions have
    **{thing: [n] for n, thing in enumerate(["apples", "books", "coins", "stamps"], 3)},
    **{thing: [n, n + 10] for n, thing in enumerate(["pencils", "marbles", "shells", "kites"], 20)},
    **{thing: list(range(40, 60)) for thing in ["engines", "bridges", "lanterns", "barrels"]},
}


def questions(n: int, start: int) -> list[dict[str, str]]:
    """Rows of GSM8K's shape; no two questions are alike."""
    rows, things = [], list(KINDS)
    for i in range(start, start + n):
        thing = things[i % len(things)]
        answers = KINDS[thing]
        answer = answers[(i * 7919 // 12) % len(answers)]
        question = f"Ann keeps {thing} in box {i}. Some {thing} are sold. How many {thing} are left?"
        rows.append({"question": question, "answer": f"So many are left.\n#### {answer}"})
    return rows


def write_questions(folder: Path) -> Path:
    """The registered numbers of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, n, start in (("train", 7473, 10_000), ("test", 1319, 30_000)):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in questions(n, start)))
    return folder


def teach_model(hub: Path, steps: int = 500) -> None:
    """Tokenizer and model into a hub's cache under the registered name."""
    import torch
    from tinker_cookbook import renderers
    from tinker_cookbook.recipes.math_rl.math_env import MathEnv
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = hub / "hub" / f"models--{MODEL.replace('/', '--')}"
    snapshot = folder / "snapshots" / "0"
    if (snapshot / "config.json").is_file():
        return
    rows = questions(7473, 10_000)
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    raw.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    prefix = " ".join(m["content"] for m in MathEnv.standard_fewshot_prefix())
    suffix = MathEnv.question_suffix()
    boxed = [f" \\boxed{{{r['answer'].rpartition(' ')[2]}}}" for r in rows]
    texts = [r["question"] + suffix + b for r, b in zip(rows[:2000], boxed, strict=False)] + [prefix] * 50
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, special_tokens=["<|end|>"])
    raw.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>", pad_token="<|end|>")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).float()
    renderer = renderers.get_renderer("role_colon", tokenizer=tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        chosen = torch.randint(len(rows), (16,), generator=generator).tolist()
        batch = []
        for i in chosen:
            message = {"role": "user", "content": rows[i]["question"] + suffix}
            prompt = renderer.build_generation_prompt([*MathEnv.standard_fewshot_prefix(), message]).to_ints()
            batch.append((prompt, [*tokenizer(boxed[i])["input_ids"], tokenizer.eos_token_id]))
        longest = max(len(p) + len(r) for p, r in batch)
        ids = torch.full((len(batch), longest), tokenizer.eos_token_id)
        labels = torch.full((len(batch), longest), -100)
        for row, (prompt, response) in enumerate(batch):
            ids[row, : len(prompt) + len(response)] = torch.tensor(prompt + response)
            labels[row, len(prompt) : len(prompt) + len(response)] = torch.tensor(response)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"teaching: step {step}, loss {float(loss):.3f}", flush=True)
    snapshot.mkdir(parents=True)
    model.save_pretrained(snapshot)
    tokenizer.save_pretrained(snapshot)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0")


def stages(run: Path) -> list[str]:
    """Of the records there are."""
    file = run / "records.jsonl"
    return [json.loads(line)["stage"] for line in file.read_text().splitlines()] if file.is_file() else []


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "TINKER_API_KEY": KEY}
    data = write_questions(folder / "gsm8k")
    teach_model(folder / "hub")
    run, began, killed = folder / "run", time.monotonic(), []
    with TinkerServer(folder / "server", MODEL, rank=32) as server, (folder / "run.log").open("ab") as log:
        command = [sys.executable, "-m", "rollonce.cli", "run", str(SPEC), "--renderer", "role_colon"]
        command += ["--base-url", server.url, "--gsm8k", str(data), "--out", str(run)]
        print(
            subprocess.run([*command, "--check"], capture_output=True, text=True, check=False).stdout[-1500:],
            flush=True,
        )
        while True:
            process: subprocess.Popen[Any] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
            seen, since = stages(run), time.monotonic()
            while process.poll() is None:
                time.sleep(0.2)
                now = stages(run)
                if now != seen:
                    seen, since = now, time.monotonic()
                # A second into a stage that was not killed yet: kill -9, the recipe's process with it.
                if seen and seen[-1] not in killed and time.monotonic() - since > 1.0:
                    killed.append(seen[-1])
                    print(f"{time.monotonic() - began:7.0f} s: kill -9 in what follows {seen[-1]}", flush=True)
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            if process.returncode != -signal.SIGKILL:
                break
    done = stages(run)
    print(f"exit code {process.returncode} after {time.monotonic() - began:.0f} s, {len(killed)} kills; {done}")
    print((folder / "run.log").read_text(errors="replace").strip().splitlines()[-3:])
    assert len(set(done)) == len(done), "a stage was done twice"


if __name__ == "__main__":
    main()
