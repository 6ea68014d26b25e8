"""``python inspect_log.py`` with inspect-ai 0.3.285: a real evaluation of a mock model, three epochs of two samples,
two scorers; and one sample whose model gives log-probabilities, once in one call and once in the last of two."""

import shutil
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, Logprob, Logprobs, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import exact, match
from inspect_ai.solver import solver

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


@solver
def ask_twice():
    """The second epoch is a conversation of two turns."""

    async def solve(state, generate):
        state = await generate(state)
        if state.epoch == 2:
            state.messages.append(ChatMessageUser(content="Sure?"))
            state = await generate(state)
        return state

    return solve


def with_log_probs():
    out = OUT.with_name("inspect_log_probs")
    shutil.rmtree(out, ignore_errors=True)
    outputs = [ModelOutput.from_content("mockllm/model", "2") for _ in range(3)]
    for i, output in enumerate(outputs):
        output.usage = ModelUsage(input_tokens=5, output_tokens=3, total_tokens=8)
        tokens = [Logprob(token=t, logprob=-(j + 1) / 4 - i) for j, t in enumerate("2!?")]
        output.choices[0].logprobs = Logprobs(content=tokens)
    model = get_model("mockllm/model", custom_outputs=outputs)
    task = Task(dataset=[Sample(input="1+1=?", target="2")], solver=ask_twice(), scorer=exact(), epochs=2, name="sums")
    eval(task, model=model, log_dir=str(out), max_samples=1, display="none")
    (path,) = out.glob("*.eval")
    path.rename(out / "sums.eval")


if __name__ == "__main__":
    main()
    with_log_probs()
