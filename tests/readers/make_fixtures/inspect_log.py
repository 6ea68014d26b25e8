"""``python inspect_log.py`` with inspect-ai 0.3.285: a real evaluation of a mock model, three epochs of two samples,
two scorers."""

import shutil
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import exact, match

OUT = Path(__file__).resolve().parents[1] / "fixtures" / "inspect"


def main():
    shutil.rmtree(OUT, ignore_errors=True)
    chat = [ChatMessageSystem(content="Be brief."), ChatMessageUser(content="2+2=?")]
    samples = [
        Sample(id="one", input="1+1=?", target="2", metadata={"level": "easy"}),
        Sample(id="two", input=chat, target="4", metadata={"level": "hard"}),
    ]
    # Samples run one at a time, so the outputs fall to them in this order: epoch 1 of both, epoch 2, epoch 3.
    outputs = [ModelOutput.from_content("mockllm/model", said) for said in ("2", "4", "3", "4", "2", "5")]
    for i, output in enumerate(outputs):  # without usage, the mock model would fetch a tokenizer to count
        output.usage = ModelUsage(input_tokens=5, output_tokens=10 + i, total_tokens=15 + i)
    model = get_model("mockllm/model", custom_outputs=outputs)
    task = Task(dataset=samples, scorer=[exact(), match()], epochs=3, name="sums")
    (log,) = eval(task, model=model, log_dir=str(OUT), max_samples=1, display="none")
    for s in log.samples:
        print(s.id, s.epoch, {k: v.value for k, v in s.scores.items()})
    (path,) = OUT.glob("*.eval")
    path.rename(OUT / "sums.eval")


main()
