"""``python tinker_cookbook.py`` with tinker-cookbook 0.6.1: its own stores write an evaluation run and two training
iterations."""

import json
import shutil
from pathlib import Path

import tinker
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.eval.benchmarks._types import StoredTrajectory, StoredTurn
from tinker_cookbook.rl.rollout_logging import serialize_rollout_summaries
from tinker_cookbook.rl.types import Trajectory, TrajectoryGroup, Transition
from tinker_cookbook.stores import storage_from_uri
from tinker_cookbook.stores.training_store import TrainingRunStore

OUT = Path(__file__).resolve().parents[1] / "fixtures"


def trajectory(reward, n_tokens):
    """One turn: an observation of three tokens, an action of n_tokens."""
    ob = tinker.ModelInput.from_ints([1, 2, 3])
    ac = TokensWithLogprobs(tokens=list(range(n_tokens)), maybe_logprobs=[0.0] * n_tokens)
    return Trajectory(transitions=[Transition(ob=ob, ac=ac, reward=reward, episode_done=True)], final_ob=ob)


def main():
    evals = OUT / "tinker_evals"
    shutil.rmtree(evals, ignore_errors=True)
    folder = evals / "runs" / "r1" / "sums"
    folder.mkdir(parents=True)
    with open(folder / "trajectories.jsonl", "w") as f:
        for i, (example, reward, tokens) in enumerate((("sums-aa", 1.0, 4), ("sums-aa", 0.0, 6), ("sums-bb", 0.5, 2))):
            turns = [
                StoredTurn(role="user", content=f"User: {example[-2:]}?\n\nAssistant:", token_count=5),
                StoredTurn(role="assistant", content="2", token_count=tokens),
                StoredTurn(role="environment", content="go on", token_count=2),
                StoredTurn(role="assistant", content="3", token_count=1),
            ]
            stored = StoredTrajectory(
                idx=i,
                benchmark="sums",
                example_id=example,
                turns=turns,
                reward=reward,
                metrics={"correct": float(reward == 1)},
                time_seconds=0.1,
            )
            f.write(json.dumps(stored.to_dict()) + "\n")

    training = OUT / "tinker_training"
    shutil.rmtree(training, ignore_errors=True)
    store = TrainingRunStore(storage_from_uri(str(training)))
    for iteration, rewards in ((0, [[1.0, 0.0], [0.0, 0.0]]), (1, [[0.5, 1.0]])):
        groups = [
            TrajectoryGroup([trajectory(r, 3 + i) for i, r in enumerate(g)], [0.25] * len(g), [{}] * len(g))
            for g in rewards
        ]
        tags = [["sums", "easy"], ["sums", "hard"]][: len(groups)]
        for split, base in (("train", "train"), ("eval/sums", "eval_sums")):
            records = serialize_rollout_summaries(
                split=split, iteration=iteration, trajectory_groups_P=groups, taglist_P=tags
            )
            store.write_rollouts(iteration, records, base_name=base)
    join = [(0, 0, "1+1=?", "s1"), (0, 1, "2+2=?", "s2"), (1, 0, "1+1=?", "s1")]
    with open(OUT / "tinker_training_join.jsonl", "w") as f:
        for iteration, group, prompt, task in join:
            f.write(json.dumps({"iteration": iteration, "group_idx": group, "prompt": prompt, "task_id": task}) + "\n")


main()
