"""The file: appended to while rollouts come in, whole after a kill at any moment, put in order at the end.

``FILE.part`` takes one line per rollout, each by one write to the end of the file. A process that is killed leaves at
most one line without its newline, which the next start cuts off. When all rollouts are there they are put in order, and
FILE appears in one step. ``FILE.collect.json`` says how the rollouts were made; it is there before the first of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from rollonce import __version__
from rollonce.collecting.settings import CollectSettings, option_name_of_setting
from rollonce.errors import InputError
from rollonce.files import make_write_error, write_whole_file
from rollonce.tasks import Task, canonical_split_name

try:
    import fcntl
except ImportError:  # Windows: no lock there, so two processes on one file are the user's to avoid
    fcntl = None

Pair = tuple[str, int]
_SYNC_EVERY = 1.0
_NOTE_EVERY = 5.0


class Counts(NamedTuple):
    """What the rollouts of a file add up to.

    Attributes:
        rollouts: How many there are.
        truncated: How many met the limit of tokens.
        failures: How many could not be graded, by the kind of failure.
        prompt_tokens, response_tokens: Sums over the rollouts whose tokens are known.
        unknown: Rollouts whose tokens the server did not report.
        seconds, retries: Sums over all sessions.
        sessions: How often the command was started.
    """

    rollouts: int = 0
    truncated: int = 0
    failures: Mapping[str, int] = MappingProxyType({})
    prompt_tokens: int = 0
    response_tokens: int = 0
    unknown: int = 0
    seconds: float = 0.0
    retries: int = 0
    sessions: int = 1


def digest_of_task(task: Task) -> str:
    """A digest of prompt and reference: a task whose text has changed since is another task."""
    return hashlib.blake2b(
        f"{task.prompt}\0{task.reference}".encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


class Store:
    """The rollouts of one collection on disk.

    Args:
        settings: Of this run; refused where they differ from those of the rollouts that are there.
        tasks: The N tasks.
        weights: A fingerprint of the model on this machine, "" for a server.

    Raises:
        InputError: the file is someone else's, in use, damaged, or was made otherwise.
    """

    def __init__(self, settings: CollectSettings, tasks: Sequence[Task], weights: str = "") -> None:
        self.path = Path(settings.out).expanduser()
        if self.path.is_dir() or not self.path.name:
            raise InputError("cannot be written: it is a directory; name a file in it", file=self.path)
        if not self.path.parent.is_dir():
            raise InputError(f"cannot be written: there is no directory {self.path.parent}", file=self.path)
        self.part = self.path.with_name(self.path.name + ".part")
        self.note = self.path.with_name(self.path.name + ".collect.json")
        self.settings = settings
        self._pinned = settings.pinned_settings() | ({"weights": weights} if weights else {})
        self._fd, self._held = -1, False
        self.rows: dict[Pair, tuple[float, bool, str]] = {}
        self._tokens, self._unknown, self._size, self.retries = [0, 0], 0, 0, 0
        self.server: dict[str, Any] = {}
        self._start = self._synced = self._noted = time.monotonic()
        earlier = self._read_collection_note()
        try:
            self._open_for_appending()
            self._load_existing_rows()
            self.started = len(self.rows)
            self._continue_collection(earlier, tasks)
        except BaseException:
            self.close_part_file()
            if self._held and not self.rows and earlier is None:
                self.part.unlink(missing_ok=True)
            raise

    # ---- what is there

    def _read_collection_note(self) -> dict[str, Any] | None:
        if not self.note.exists():
            for file in (self.path, self.part):
                if file.exists() and file.stat().st_size:
                    raise InputError(
                        f"is there already, without the {self.note.name} that says how it was made; give another "
                        "--out, or move it away",
                        file=file,
                    )
            return None
        try:
            note = orjson.loads(self.note.read_bytes())
            return {"settings": dict(note["settings"]), **note} if isinstance(note["tasks"], list) else note["nothing"]
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror or error}", file=self.note) from None
        except (ValueError, KeyError, TypeError):
            raise InputError(
                "is no note of rollonce collect; move it and its rollouts away, or give another --out", file=self.note
            ) from None

    def _open_for_appending(self) -> None:
        try:
            if self.path.exists() and not (self.part.exists() and self.part.stat().st_size):
                # Finished before, and now to grow: go on with a copy, so that the finished file stays whole until the
                # new one is.
                write_whole_file(self.part, self.path.read_bytes())
            self._fd = os.open(self.part, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            if fcntl is not None:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not os.fstat(self._fd).st_nlink:  # it finished between our opening and our locking
                    raise BlockingIOError
            self._held = True
        except BlockingIOError:
            raise InputError(
                "another rollonce collect is writing it; wait for it, or give another --out", file=self.path
            ) from None
        except OSError as error:
            raise make_write_error(self.part, error) from None

    def _load_existing_rows(self) -> None:
        data = self.part.read_bytes()
        end = data.rfind(b"\n") + 1
        lines = data[:end].split(b"\n")[:-1]
        if lines and not _is_whole_json_object(lines[-1]):  # after a loss of power the last block may be anything
            end -= len(lines[-1]) + 1
            lines.pop()
        if end < len(data):
            os.ftruncate(self._fd, end)
        self._size = end
        for number, line in enumerate(lines, 1):
            try:
                row = orjson.loads(line)
                pair = (row["task_id"], row["rollout_id"])
                values = row["reward"], row["truncated"], row.get("failure", "")
            except (ValueError, KeyError, TypeError):
                raise InputError(
                    "this is no row of rollonce collect; take it out, or give another --out",
                    file=self.part,
                    line=number,
                ) from None
            if pair in self.rows:
                raise InputError(
                    f"task {pair[0]!r} has its rollout {pair[1]} twice; take one out", file=self.part, line=number
                )
            self.rows[pair] = values
            self._count_row_tokens(row)

    def _continue_collection(self, earlier: dict[str, Any] | None, tasks: Sequence[Task]) -> None:
        digests = {t.id: digest_of_task(t) for t in tasks}
        if earlier is None or not self.rows:
            self.generations = [[t.id for t in tasks]]
            self.sessions: list[dict[str, Any]] = []
        else:
            was = earlier["settings"] | {"split": canonical_split_name(str(earlier["settings"].get("split")))}
            for name in dict.fromkeys([*was, *self._pinned]):
                if was.get(name) != self._pinned.get(name):
                    self._refuse_changed_setting(name, was.get(name), self._pinned.get(name))
            known = {t["id"]: t["digest"] for g in earlier["tasks"] for t in g}
            for id_, digest in known.items():
                if id_ not in digests:
                    asked = f"{len(known)} tasks, of which {id_!r} is not among the {len(tasks)} now asked for"
                    raise InputError(
                        f"holds rollouts of {asked}; ask for at least as many, or give another --out", file=self.path
                    )
                if digests[id_] != digest:
                    raise InputError(
                        f"task {id_!r} had another prompt or reference when its rollouts were made; give another --out",
                        file=self.path,
                    )
            if earlier["rollouts"] > self.settings.n_rollouts:
                more = f"more than the {self.settings.n_rollouts} now asked for"
                raise InputError(
                    f"holds {earlier['rollouts']} rollouts of each task, {more}; give another --out", file=self.path
                )
            fresh = [t.id for t in tasks if t.id not in known]
            self.generations = [[t["id"] for t in g] for g in earlier["tasks"]] + ([fresh] if fresh else [])
            self.sessions, self.server = list(earlier["sessions"]), dict(earlier["server"])
        self._digests = digests
        odd = next((p for p in self.rows if p[0] not in digests or not 0 <= p[1] < self.settings.n_rollouts), None)
        if odd is not None:
            raise InputError(
                f"holds rollout {odd[1]} of task {odd[0]!r}, which was never asked for; give another --out",
                file=self.path,
            )
        self.sessions.append({"started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "url": self.settings.url})
        self.write_collection_note()

    def _refuse_changed_setting(self, name: str, was: Any, now: Any) -> None:
        if name == "weights":
            raise InputError(
                f"its rollouts are of other weights than {self.settings.policy!r} holds now; give another --out",
                file=self.path,
            )
        raise InputError(
            f"its rollouts were made with {option_name_of_setting(name)} {was!r}, not {now!r}; "
            "go on with that, or give another --out",
            file=self.path,
        )

    # ---- what comes

    def append_rollout_rows(self, rows: Iterable[dict[str, Any]]) -> None:
        """Append rows, all in one write.

        Raises:
            InputError: the disk is full, or the like; what had been written before stays.
        """
        rows = list(rows)
        with self._errors_as_sentences():
            self._append_all_bytes(b"".join(orjson.dumps(_replace_lone_surrogates(r)) + b"\n" for r in rows))
        for r in rows:
            self.rows[r["task_id"], r["rollout_id"]] = r["reward"], r["truncated"], r.get("failure", "")
            self._count_row_tokens(r)
        now = time.monotonic()
        if now - self._synced > _SYNC_EVERY:
            self._synced = now
            os.fsync(self._fd)
        if now - self._noted > _NOTE_EVERY:
            self.write_collection_note()

    def _append_all_bytes(self, data: bytes) -> None:
        try:
            done = 0
            while done < len(data):  # a write may take less than all: a full disk says so at the next one
                done += os.write(self._fd, data[done:])
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise
        self._size += len(data)

    def _count_row_tokens(self, row: dict[str, Any]) -> None:
        inn, out = row.get("prompt_tokens"), row.get("response_tokens", row.get("response_length"))
        self._tokens[0] += inn or 0
        self._tokens[1] += out or 0
        self._unknown += inn is None or out is None

    def write_collection_note(self) -> None:
        """Bring FILE.collect.json up to date, in one step."""
        self._noted = time.monotonic()
        self.sessions[-1] |= {
            "seconds": round(self._noted - self._start, 3),
            "rollouts": len(self.rows) - self.started,
            "retries": self.retries,
        }
        note = {
            "rollonce": __version__,
            "settings": self._pinned,
            "rollouts": self.settings.n_rollouts,
            "server": self.server,
            "sessions": self.sessions,
            "tasks": [[{"id": i, "digest": self._digests[i]} for i in g] for g in self.generations],
        }
        write_whole_file(
            self.note, orjson.dumps(note, option=orjson.OPT_INDENT_2) + b"\n", if_it_fails=self._describe_kept_rows()
        )

    # ---- what is missing

    def split_into_blocks(self, size: int) -> list[list[Pair]]:
        """All (task, rollout) pairs in blocks of at most ``size`` tasks with one rollout each.

        Growing the set adds blocks and changes none: a model's numbers depend, in the last digit, on what is computed
        beside them, so a rollout is only the same again among the same neighbours.
        """
        out = []
        for g in self.generations:
            for start in range(0, len(g), size):
                out += [[(i, r) for i in g[start : start + size]] for r in range(self.settings.n_rollouts)]
        return out

    def missing_rollouts(self) -> list[Pair]:
        """The (task, rollout) pairs that have no row yet, task by task."""
        return [
            (i, r)
            for g in self.generations
            for i in g
            for r in range(self.settings.n_rollouts)
            if (i, r) not in self.rows
        ]

    def count_rollouts_and_tokens(self) -> Counts:
        """What all rows add up to, over all sessions."""
        kinds: dict[str, int] = {}
        for _, _, failure in self.rows.values():
            kind = failure.partition(":")[0]
            if kind and kind != "truncated":
                kinds[kind] = kinds.get(kind, 0) + 1
        before = self.sessions[:-1]
        return Counts(
            rollouts=len(self.rows),
            truncated=sum(truncated for _, truncated, _ in self.rows.values()),
            failures=kinds,
            prompt_tokens=self._tokens[0],
            response_tokens=self._tokens[1],
            unknown=self._unknown,
            seconds=sum(s.get("seconds", 0.0) for s in before) + time.monotonic() - self._start,
            retries=sum(s.get("retries", 0) for s in before) + self.retries,
            sessions=len(self.sessions),
        )

    def write_finished_file(self) -> None:
        """All rollouts in order, task by task, as FILE; then FILE.part goes.

        Raises:
            InputError: something is missing still, or the disk is full.
        """
        assert not self.missing_rollouts()
        place = {i: n for n, i in enumerate(i for g in self.generations for i in g)}
        keyed = []
        for line in self.part.read_bytes().split(b"\n")[:-1]:
            r = orjson.loads(line)
            keyed.append(((place[r["task_id"]], r["rollout_id"]), line))
        data = b"".join(line + b"\n" for _, line in sorted(keyed))
        write_whole_file(self.path, data, if_it_fails=self._describe_kept_rows())
        self.write_collection_note()
        self.part.unlink()
        self.close_part_file()

    def close_unfinished(self) -> None:
        """Stop before the end: note how far it came, and let go."""
        with contextlib.suppress(InputError):  # a full disk, most likely the very thing that stopped us
            self.write_collection_note()
        self.close_part_file()
        if not self.rows:  # nothing of worth: leave the place as it was found
            self.part.unlink(missing_ok=True)
            self.note.unlink(missing_ok=True)

    def close_part_file(self) -> None:
        """Let go of the file; rows that are in it stay."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.fsync(fd)
            os.close(fd)

    @contextlib.contextmanager
    def _errors_as_sentences(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise make_write_error(self.path, error, self._describe_kept_rows()) from None

    def _describe_kept_rows(self) -> str:
        n = len(self.rows)
        return f"the {n} rollouts before are kept in {self.part.name}, and the same command goes on there" if n else ""


def _is_whole_json_object(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except ValueError:
        return False


def _replace_lone_surrogates(row: dict[str, Any]) -> dict[str, Any]:
    """Half of a surrogate pair, which some tokenizers give back, becomes U+FFFD: JSON has no place for it."""
    return {
        k: v.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(v, str) else v
        for k, v in row.items()
    }
