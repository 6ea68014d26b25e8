"""A verifiers environment (0.4) as the source of tasks: it rolls out and scores, we choose tasks, seeds and how many at
once.

One agent, its program in a process on this machine: the environment's own program where it brings one, else verifiers'
plain chat loop (``null``). What needs containers or several agents is run with verifiers' own command, whose traces
`rollonce score` reads.
Source: verifiers 0.4.0, v1/env.py (`Env.run_slot`), v1/taskset.py, v1/utils/loaders.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import numpy as np

from rollonce.collecting.endpoint import Endpoint
from rollonce.collecting.settings import CollectSettings, Sampled
from rollonce.errors import InputError, MissingExtraError
from rollonce.readers.options import Options
from rollonce.readers.verifiers import Verifiers, render_task_prompt
from rollonce.tasks import Task

# What a client of an endpoint without a key is told to read: never set, so verifiers sends its own placeholder and not
# a key of the user's.
_NO_KEY = "ROLLONCE_NO_KEY"
_SEED_SENT = "sent with each request; whether the server heeds it was not checked"


def _refuse_to_grade(response: str, reference: str) -> float:
    raise AssertionError("the environment scores its own rollouts")


class Environment:
    """A loaded environment and N of its tasks."""

    def __init__(self, settings: CollectSettings, env: Any, own: dict[str, Any], tasks: list[Task]) -> None:
        self.settings, self.env, self.own, self.tasks = settings, env, own, tasks

    @classmethod
    def from_settings(cls, s: CollectSettings) -> Environment:
        """The environment named by ``verifiers:TASKSET``.

        Raises:
            InputError: there is none of that name, it needs more than we give, or it has too few tasks.
            MissingExtraError: verifiers is not installed.
        """
        try:
            from verifiers.v1.configs.env import agent_config_fields
            from verifiers.v1.utils.loaders import (
                default_harness_id,
                environment_class,
                load_environment,
                resolve_env_config,
            )
        except ImportError as error:
            raise MissingExtraError("a verifiers environment", "verifiers>=0.4", "verifiers") from error
        name = s.tasks_from.partition(":")[2].strip()
        if not name:
            raise InputError("say which environment: --tasks-from verifiers:TASKSET")
        if s.split != CollectSettings.split or s.system is not None or s.template != "{prompt}" or s.api != "chat":
            raise InputError(
                "a verifiers environment has its own splits and prompts: leave out --split, --system, --template, --api"
            )
        try:
            environment_class(name)
            bundled = default_harness_id(name)
            harness = "null" if bundled == "bash" else bundled
            config = resolve_env_config(
                {"taskset": {"id": name}, "agent": {"harness": {"id": harness}, "runtime": {"type": "subprocess"}}}
            )
            if list(agent_config_fields(config)) != ["agent"]:
                raise InputError(
                    f"the environment {name!r} has several agents; run it with verifiers' own command and give "
                    "`rollonce score` its traces"
                )
            env = load_environment(config)
            taskset = env.taskset if env.taskset.bounded else env.taskset.take(s.n_tasks)
            all_tasks = list(taskset)
        except InputError:
            raise
        except Exception as error:  # an environment is foreign code: anything may come out of it
            raise InputError(
                f"the verifiers environment {name!r} cannot be loaded: "
                f"{type(error).__name__}: {_first_line_of_error(error)}"
            ) from error
        if len(all_tasks) < s.n_tasks:
            raise InputError(
                f"{s.n_tasks} tasks asked for, but {name} has only {len(all_tasks)}: ask for --tasks {len(all_tasks)}"
            )
        order = (
            np.random.default_rng([s.seed, len(all_tasks)]).permutation(len(all_tasks))
            if env.taskset.bounded
            else range(len(all_tasks))
        )
        own: dict[str, Any] = {}
        tasks = []
        for i in list(order)[: s.n_tasks]:
            task = all_tasks[int(i)]
            data = task.data.model_dump(mode="json")
            if data.get("prompt") is None:
                raise InputError(
                    f"in {name} the environment opens the conversation: there is no prompt that is known before the "
                    "rollout"
                )
            id_ = f"{name}/{task.key}"
            own[id_] = task
            tasks.append(Task(id_, render_task_prompt(data, {}), "", _refuse_to_grade))
        return cls(s, env, own, tasks)

    def make_rollout_asker(self, endpoint: Endpoint, note: dict[str, Any]) -> EnvironmentAsker:
        """What rolls out, after ``endpoint`` has looked whether the server is there."""
        return EnvironmentAsker(self, endpoint, note)


class EnvironmentAsker:
    """One rollout of the environment at a time each call; `rollonce.collecting.run.Asker`."""

    def __init__(self, environment: Environment, endpoint: Endpoint, note: dict[str, Any]) -> None:
        from verifiers.v1.clients import EvalClientConfig

        s = environment.settings
        self.environment, self.endpoint, self.note = environment, endpoint, note
        self.retries = 0
        self._client = EvalClientConfig.model_validate(
            {
                "base_url": endpoint.base,
                "api_key_var": s.key_env or _NO_KEY,
                "timeout": {"connect": 15.0, "read": s.timeout},
            }
        )
        self._serving = contextlib.AsyncExitStack()
        self._reader = Verifiers(Options())

    async def prepare_for_sampling(self) -> None:
        """See that the server is there, and start what the environment serves."""
        await self.endpoint.prepare_for_sampling()
        await self._serving.enter_async_context(self.environment.env.serving())

    async def close(self) -> None:
        """Stop what the environment serves."""
        await self._serving.aclose()
        await self.endpoint.close()

    async def sample_rollout(self, task: Task, seed: int) -> Sampled:
        """One rollout, tried again where the server failed for the moment.

        Raises:
            InputError: the server fails for good, or too often.
        """
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.env import RunSlot
        from verifiers.v1.types import SamplingConfig

        s, attempt = self.environment.settings, 0
        while True:
            seeded = {} if str(self.note.get("seed", "")).startswith("refused") else {"seed": seed}
            sampling = SamplingConfig.model_validate(
                {"temperature": s.temperature, "max_tokens": s.max_tokens, **s.extra, **seeded}
            )
            slot = RunSlot(self.environment.own[task.id])
            episode = await self.environment.env.run_slot(slot, ModelContext(s.policy, self._client, sampling))
            errors = [*(e for t in episode.traces for e in t.errors), *episode.errors]
            if episode.ok or not errors:
                return self._sampled_of_episode(episode)
            status = next((e.status_code for e in errors if e.status_code is not None), None)
            said = self.endpoint.redact_server_key(" ".join(f"{errors[0].type}: {errors[0].message}".split())[:300])
            if status in (400, 422) and "seed" in said.lower() and seeded:
                self.note["seed"] = f"refused by the server, not sent ({said})"
                continue
            if status is not None and status < 500 and status not in (408, 409, 425, 429):
                raise InputError(
                    f"the server at {self.endpoint.base} refuses the request for task {task.id!r} (status {status}: "
                    f"{said})"
                )
            if attempt == s.retries:
                if status is not None:
                    raise InputError(
                        f"the server at {self.endpoint.base} failed {attempt + 1} times in a row, last with {said}"
                    )
                return Sampled("", reward=0.0, failure=said)
            attempt += 1
            self.retries += 1
            await asyncio.sleep(min(60.0, 0.5 * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0))

    def _sampled_of_episode(self, episode: Any) -> Sampled:
        trace = episode.traces[0]
        text, finish = _sampled_text_of_trace(trace), trace.calls[-1].finish_reason if trace.calls else None
        tokens = {"prompt_tokens": trace.num_input_tokens, "tokens": trace.num_output_tokens}
        if finish == "length":
            # Whatever the environment gives for a piece of an answer: as everywhere, a truncated rollout earns 0.
            self.note.setdefault("seed", _SEED_SENT)
            return Sampled(text, **tokens, truncated=True, reward=0.0, failure="truncated")
        try:
            scored = next(iter(self._reader.parse_rollout_rows(episode.model_dump(mode="json"))))
        except InputError as error:
            return Sampled("", reward=0.0, failure=f"NotScored: {error.message}")
        self.note.setdefault("seed", _SEED_SENT)
        return Sampled(text, **tokens, reward=float(scored.reward))


def _sampled_text_of_trace(trace: Any) -> str:
    """What the policy wrote, its turns a blank line apart."""
    parts = []
    for node in trace.nodes:
        if node.sampled:
            content = node.message.content
            parts.append(content if isinstance(content, str) else "" if content is None else str(content))
    return "\n\n".join(parts)


def _first_line_of_error(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
