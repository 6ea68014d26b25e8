"""Files are written whole or not at all, and JSON holds no NaN."""

from __future__ import annotations

import errno
import json
import os
from typing import NamedTuple

import numpy as np
import pytest

from rollonce.errors import InputError
from rollonce.files import convert_to_plain_json, write_json_file, write_whole_file


class Pair(NamedTuple):
    value: float
    low: float


def test_a_file_is_replaced_whole_with_the_usual_permissions(tmp_path):
    path = tmp_path / "baseline.json"
    write_whole_file(path, "one")
    write_whole_file(path, b"two")
    mask = os.umask(0)
    os.umask(mask)
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    assert [p.name for p in tmp_path.iterdir()] == ["baseline.json"]


@pytest.mark.parametrize(("number", "word"), [(errno.ENOSPC, "disk is full"), (errno.EACCES, "Permission denied")])
def test_a_failed_write_leaves_what_was_there_and_says_why(tmp_path, monkeypatch, number, word):
    path = tmp_path / "result.json"
    write_whole_file(path, "old")

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(InputError, match=f"result.json.*{word}.*the run goes on"):
        write_whole_file(path, "new", if_it_fails="the run goes on from its checkpoint")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


def test_a_missing_folder_is_named_or_made(tmp_path):
    path = tmp_path / "there" / "x.txt"
    with pytest.raises(InputError, match="No such file or directory"):
        write_whole_file(path, "x")
    write_whole_file(path, "half a pair: \ud800", make_parents=True)
    assert path.read_text() == "half a pair: \\ud800"


def test_plain_json_knows_numpy_named_tuples_and_what_json_has_no_number_for(tmp_path):
    value = {
        "a": np.float64("nan"),
        "b": np.array([1.0, np.inf]),
        "c": Pair(1.5, float("-inf")),
        "d": (np.int64(3), True),
    }
    write_json_file(tmp_path / "x.json", value)
    expected = {"a": None, "b": [1.0, None], "c": {"value": 1.5, "low": None}, "d": [3, True]}
    assert convert_to_plain_json(value) == expected
    assert json.loads((tmp_path / "x.json").read_text()) == expected
