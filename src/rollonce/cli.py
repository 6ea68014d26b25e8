"""The command line: ``rollonce VERB ...``. One file a verb in `rollonce.commands`; nothing heavy is imported before a
verb is known.

Exit codes: 0 done, 1 a gate or check failed, 2 bad input, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import difflib
import importlib
import itertools
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from rollonce import __version__
from rollonce.errors import InputError


class Verb(NamedTuple):
    """A command.

    Attributes:
        module: In `rollonce.commands`; it has a dataclass ``Args``, a text ``HELP`` and ``run(args) -> int``.
        summary: One line for ``rollonce --help``.
    """

    module: str
    summary: str


VERBS: dict[str, Verb] = {
    "score": Verb("score", "rank baselines on rollouts you have: effective batch sizes with intervals"),
    "watch": Verb("watch", "rank baselines on the log of a training run, also while it is written"),
    "tune": Verb("tune", "hill-climb to a baseline on your rollouts, and report it on tasks it was not tuned on"),
    "transfer": Verb("transfer", "does a kernel tuned on one set work on another? kernels x sets, as a matrix"),
    "plan": Verb("plan", "one rollout per task or groups at your budget, and the power of a decision rule"),
    "collect": Verb(
        "collect", "calibration rollouts from a policy: a server, a model on this machine, or the embedded one"
    ),
    "run": Verb("run", "a pre-registered experiment from its specification to its verdict, resumable"),
    "noise": Verb("noise", "measured gradient noise of every baseline at a fixed policy, beside what B_eff predicts"),
    "train": Verb("train", "train a policy with one baseline, one seed"),
    "compare": Verb("compare", "train arms x seeds and compare them, with intervals and a verdict"),
    "report": Verb(
        "report", "compare the arms of a directory of training runs: differences with intervals, time, one page"
    ),
    "baselines": Verb("baselines", "every baseline that has a name: its class, formula and source"),
    "check": Verb("check", "audit a baseline: does it leak its own reward, does it keep its promises?"),
}

REPEATED = ("--columns", "--baseline", "--only")
"""Options that may be given several times, each time with one value."""

SHELLS = ("bash", "zsh")
"""For which ``--print-completion`` writes a script."""

_HEAD = """\
rollonce - baselines for training language models with one rollout per task

With one rollout per task the advantage is r - b, and everything depends on the
baseline b. rollonce tells you, from rollouts you already have, which baseline
predicts best on your tasks, how large a batch it makes out of yours (B_eff),
and how sure that is.

Commands:
"""

_TAIL = """
Examples:
  rollonce score gsm8k_qwen25coder_1.5b
      A set that comes with rollonce. --all-datasets scores all eight.
  rollonce score rollouts.jsonl --report out.html
      Your own rollouts: a table here, and one page to pass on.

rollonce VERB --help has the options and examples of each, with --json for
output that programs read. Exit codes: 0 done, 1 a check failed, 2 bad input,
130 stopped by Ctrl-C.
Completion: rollonce --print-completion bash > FILE; source FILE   (zsh, too)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        argv: Arguments without the program's name; those of the process by default.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        # A file name need not be UTF-8, and a terminal need not know all of Unicode; neither is worth a crash.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = _dispatch_arguments(arguments)
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"rollonce: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nrollonce: stopped by Ctrl-C; nothing more was written", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read our output has left. Python would say so once more at exit, when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def format_help_text() -> str:
    """What ``rollonce --help`` prints."""
    width = max(map(len, VERBS)) + 4
    lines = [
        textwrap.fill(verb.summary, 80, initial_indent=f"  {name:<{width - 2}}", subsequent_indent=" " * width)
        for name, verb in VERBS.items()
    ]
    return _HEAD + "\n".join(lines) + "\n" + _TAIL


def _dispatch_arguments(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        if len(arguments) > 1 and arguments[0] == "help":
            return _dispatch_arguments([arguments[1], "--help"])
        print(format_help_text(), end="")
        return 0
    if arguments[0] in ("-V", "--version", "version"):
        print(f"rollonce {__version__}")
        return 0
    if arguments[0] == "--print-completion":
        return _print_completion(arguments[1:])
    name, rest = arguments[0], arguments[1:]
    if name not in VERBS:
        raise InputError(_describe_unknown_command(name))
    return parse_and_run_verb(name, rest)


def _print_completion(shells: list[str]) -> int:
    if len(shells) != 1 or shells[0] not in SHELLS:
        raise InputError(f"--print-completion takes the name of a shell: {', '.join(SHELLS)}")
    import tyro

    commands = {name: importlib.import_module(f"rollonce.commands.{verb.module}").Args for name, verb in VERBS.items()}
    words = ["--tyro-print-completion", shells[0]]
    config = (tyro.conf.FlagCreatePairsOff,)
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog="rollonce", args=words, config=config)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def _describe_unknown_command(name: str) -> str:
    if name.startswith("-"):
        return f"no option {name!r} before the command; rollonce --help lists the commands, {', '.join(VERBS)}"
    near = difflib.get_close_matches(name, VERBS, n=1, cutoff=0.5)
    if near:
        return f"no command {name!r}; did you mean {near[0]!r}?"
    hint = f"; to score a file: rollonce score {name}" if os.path.exists(name) else ""
    return f"no command {name!r}; the commands are {', '.join(VERBS)}{hint}"


def _check_repeated_options(words: Sequence[str]) -> None:
    """Name ``FILES --columns family level`` for what it is; tyro would say that ``level`` is not recognised."""
    bounds = [*(i for i, word in enumerate(words) if word.startswith("-")), len(words)]
    for start, end in itertools.pairwise(bounds):
        option, values = words[start], words[start + 1 : end]
        if option in REPEATED and start > 0 and len(values) > 1 and not os.path.exists(values[1]):
            again = " ".join(f"{option} {value}" for value in values)
            raise InputError(f"{option} takes one value each time: {again}")


def parse_and_run_verb(name: str, rest: list[str]) -> int:
    """Parse a verb's arguments and run it."""
    import tyro

    command = importlib.import_module(f"rollonce.commands.{VERBS[name].module}")
    if any(word in ("-h", "--help") for word in rest):
        print(command.HELP)  # as it was written; tyro would run its lines together
    _check_repeated_options(rest)
    try:
        args = tyro.cli(
            command.Args,
            prog=f"rollonce {name}",
            description="",
            args=rest,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
    except SystemExit as stop:
        return int(stop.code or 0)
    return command.run(args)


if __name__ == "__main__":
    sys.exit(main())
