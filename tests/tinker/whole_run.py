"""By hand: the request's own file, byte for byte, from ``--check`` to its verdict on the real local server, killed with
``kill -9`` once in every stage.

    .venv-tinker/bin/python tests/tinker/whole_run.py DIRECTORY [--small]

A model of two layers answers to the registered name. It was taught for a minute to answer made-up questions of GSM8K's
shape (7,473 and 1,319 of them), of which some kinds are easy, some a matter of luck and some hopeless, so that a kernel
over words has something to predict and the registered gate can pass. What is not registered is given as options:
``--renderer qwen3_5_disable_thinking``, the server's address, and where the questions lie. The same command goes on
where it was; ``kills.json`` says which kills are behind it. It takes about 20 CPU minutes; with ``--small`` a copy with
4 steps, 1,500 training and 128 test questions takes a third of that.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from server import KEY, TinkerServer

from rollonce.cli import main as rollonce_main

MODEL = "Qwen/Qwen3.5-2B"
RENDERER = "qwen3_5_disable_thinking"
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


def write_questions(folder: Path, n_train: int, n_test: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, n, start in (("train", n_train, 10_000), ("test", n_test, 30_000)):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in questions(n, start)))
    return folder


def teach_model(hub: Path, steps: int = 400) -> None:
    """Tokenizer and model into a hub's cache under the registered name."""
    import torch
    from tinker_cookbook import renderers
    from tinker_cookbook.recipes.math_rl.math_env import MathEnv
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    folder = hub / "hub" / f"models--{MODEL.replace('/', '--')}"
    snapshot = folder / "snapshots" / "0"
    if (folder / "refs" / "main").is_file():
        return
    rows = questions(7473, 10_000)
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    raw.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    prefix = MathEnv.standard_fewshot_prefix()
    suffix = MathEnv.question_suffix()
    boxed = [f"\\boxed{{{r['answer'].rpartition(' ')[2]}}}" for r in rows]
    texts = [r["question"] + suffix + b for r, b in zip(rows[:2000], boxed, strict=False)]
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_end|>", "<|im_start|>", "<think>", "</think>"],
    )
    raw.train_from_iterator([*texts, *[" ".join(m["content"] for m in prefix)] * 2000], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|im_end|>")
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    model = Qwen3ForCausalLM(config).float()
    renderer = renderers.get_renderer(RENDERER, tokenizer=tokenizer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        batch = []
        for i in torch.randint(len(rows), (16,), generator=generator).tolist():
            message = {"role": "user", "content": rows[i]["question"] + suffix}
            prompt = renderer.build_generation_prompt([*prefix, message]).to_ints()
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
        if step % 50 == 0 or step == steps - 1:
            print(f"teaching: step {step}, loss {float(loss):.3f}", flush=True)
    snapshot.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(snapshot)
    tokenizer.save_pretrained(snapshot)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text("0")


class Kill(NamedTuple):
    """Where a stage is killed: when the file ``log`` of the run has ``lines`` lines, or ``seconds`` after the stage
    before was noted; without either, the very moment that it was."""

    stage: str
    log: str = ""
    lines: int = 0
    seconds: float = 0.0


def kills_of(steps: int, items: int) -> list[Kill]:
    """One per stage, in their order; in the arms and evaluations a third of the way."""
    arms = ("grpo_g8", "gs1_tfidf_g1")
    return [
        Kill("pins"),
        Kill("data_audit"),
        Kill("correctness"),
        Kill("restoration", seconds=1.0),
        Kill("probe", seconds=2.0),
        Kill("calibration", log="calibration.jsonl", lines=20),
        Kill("gate_offline"),
        Kill("pilot", log="pilot/grpo_g8/log/metrics.jsonl", lines=1),
        Kill("gate_online"),
        Kill("feasibility"),
        *(Kill(f"arm:{a}", log=f"arms/{a}/log/metrics.jsonl", lines=steps // 3) for a in arms),
        *(Kill(f"evaluation:{a}", log=f"evaluation/{a}.jsonl", lines=items // 3) for a in arms),
        Kill("decision"),
    ]


def small_copy(folder: Path) -> Path:
    """The file with fewer steps, questions and items; all else as it is."""
    text = SPEC.read_text().replace("max_steps=60", "max_steps=4").replace('"n_examples": 7473', '"n_examples": 1500')
    document = json.loads(text.replace('"n_examples": 1319', '"n_examples": 128'))
    document["steps"] = 4
    for arm in document["arms"]:
        arm["steps"] = 4
    path = folder / "small.spec.json"
    path.write_text(json.dumps(document, indent=1))
    return path


def count_lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.is_file() else 0


def recorded_stages(run: Path) -> list[str]:
    """Of the records that the ledger has noted: a record that it has not is made again."""
    ledger = run.with_name(f"{run.name}.ledger.json")
    noted = json.loads(ledger.read_bytes())["lines"].get("records.jsonl", [0])[0] if ledger.is_file() else 0
    file = run / "records.jsonl"
    return [json.loads(line)["stage"] for line in file.read_bytes().split(b"\n")[:noted]] if noted else []


def import_everything() -> None:
    """What a sitting needs, once and before it forks: each would spend 15 CPU seconds on it."""
    needed = (
        "tinker",
        "transformers.models.auto.tokenization_auto",
        "datasets",
        "tinker_cookbook.renderers",
        "tinker_cookbook.recipes.math_rl.math_env",
        "rollonce.experiments.engines.cookbook",
        "rollonce.experiments.stages",
        "rollonce.policies.tinker_policy",
        "rollonce.reports.experiment",
    )
    for module in needed:
        importlib.import_module(module)


class Sittings:
    """The same command again and again, each time killed in the next stage, until none is left."""

    def __init__(self, folder: Path, command: list[str], kills: list[Kill]) -> None:
        self.run, self.kept, self.command = folder / "run", folder / "kills.json", command
        self.kills = kills
        self.log = folder / "run.log"
        self.killed: list[dict[str, Any]] = json.loads(self.kept.read_text()) if self.kept.is_file() else []
        self.began = time.monotonic()

    def to_the_end(self) -> int:
        """The exit code of the sitting that nobody killed."""
        while True:
            code = self.sit()
            if code != -signal.SIGKILL:
                return code

    def sit(self) -> int:
        """One sitting: the command in a process group of its own; its exit code, or minus the signal."""
        pid = os.fork()
        if pid == 0:
            os.setsid()
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            code = 70
            try:
                code = rollonce_main(self.command)
            finally:
                os._exit(code)
        seen, changed, since = recorded_stages(self.run), (0, 0), time.monotonic()
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            now = self.ledger_state()
            if now != changed:
                changed, stages = now, recorded_stages(self.run)
                if stages != seen:
                    seen, since = stages, time.monotonic()
            kill = self.next_kill(seen)
            if kill is not None and self.is_due(kill, seen, time.monotonic() - since):
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                self.note(kill, recorded_stages(self.run))
                return -signal.SIGKILL
            time.sleep(0.002 if kill is not None and kill == Kill(kill.stage) else 0.05)

    def ledger_state(self) -> tuple[int, int]:
        """Of the file as it is now: another one each time that it is written."""
        try:
            found = self.run.with_name(f"{self.run.name}.ledger.json").stat()
        except FileNotFoundError:
            return 0, 0
        return found.st_ino, found.st_mtime_ns

    def next_kill(self, seen: list[str]) -> Kill | None:
        """The first that is still to come; a stage that was quicker than this loop is passed over, and says so."""
        for kill in self.kills:
            if kill.stage in [k["stage"] for k in self.killed]:
                continue
            if kill.stage not in seen:
                return kill
            self.note(kill, seen)
        return None

    def is_due(self, kill: Kill, seen: list[str], seconds: float) -> bool:
        before = ["start", *(k.stage for k in self.kills)][self.kills.index(kill)]
        if not seen or seen[-1] != before or seconds < kill.seconds:
            return False
        return not kill.log or count_lines(self.run / kill.log) >= kill.lines

    def note(self, kill: Kill, seen: list[str]) -> None:
        lines = count_lines(self.run / kill.log) if kill.log else None
        what = "kill -9 in" if kill.stage not in seen else "was over before it could be killed:"
        there = f", {lines} lines in {kill.log}" if kill.log else ""
        print(f"{time.monotonic() - self.began:7.1f} s: {what} {kill.stage}{there}", flush=True)
        self.killed.append({"stage": kill.stage, "in_time": kill.stage not in seen, "lines": lines})
        self.kept.write_text(json.dumps(self.killed))


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"HF_HOME": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "TINKER_API_KEY": KEY}
    small = "--small" in sys.argv
    spec, steps, sizes = (small_copy(folder), 4, (1500, 128)) if small else (SPEC, 60, (7473, 1319))
    data = write_questions(folder / "gsm8k", *sizes)
    teach_model(folder / "hub")
    with TinkerServer(folder / "server", MODEL, rank=32, slots=10) as server:
        command = ["run", str(spec), "--renderer", RENDERER]
        command += ["--base-url", server.url, "--gsm8k", str(data), "--out", str(folder / "run")]
        if not (folder / "check.txt").is_file():
            began, rollonce = time.monotonic(), [sys.executable, "-m", "rollonce.cli"]
            checked = subprocess.run([*rollonce, *command, "--check"], capture_output=True, text=True, check=False)
            (folder / "check.txt").write_text(checked.stdout + checked.stderr)
            print(f"--check: exit code {checked.returncode} after {time.monotonic() - began:.1f} s", flush=True)
        import_everything()
        sittings = Sittings(folder, command, kills_of(steps, sizes[1]))
        code = sittings.to_the_end()
    done = recorded_stages(folder / "run")
    in_time = sum(kill["in_time"] for kill in sittings.killed)
    print(f"exit code {code} after {time.monotonic() - sittings.began:.0f} s, {in_time} kills")
    print(f"stages: {', '.join(done)}")
    print(sittings.log.read_text(errors="replace").strip().splitlines()[-4:])
    assert len(set(done)) == len(done), "a stage was done twice"


if __name__ == "__main__":
    main()
