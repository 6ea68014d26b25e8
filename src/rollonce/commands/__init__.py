"""The commands, one file a verb: a dataclass ``Args``, a text ``HELP`` with examples, and ``run(args) -> exit code``.

`rollonce.cli.VERBS` lists them. What they share: `inputs` (files to tables), `terminal` (output, progress bars),
    `saved` (baseline files).
"""
