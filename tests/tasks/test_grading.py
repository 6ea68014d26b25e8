"""Graders against answers worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollonce.errors import InputError
from rollonce.tasks import extract_final_answer, find_grader_by_name
from rollonce.tasks.grading import contains, exact, numeric_exact


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("42", "42"),
        ("12 + 30 = 42. So the answer is 42.", "42"),
        ("The answer is: -7", "-7"),
        ("Answer: 3\nwait, no.\nFinal answer: 4", "4"),
        ("Answer: 4\nThat was easy", "4"),
        (r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        (r"\boxed{1} then \boxed{2}", "2"),
        ("<answer> a, b </answer> and more", "a, b"),
        ("work\n#### 1,234", "1,234"),
        ("ANSWER IS ['1', '2']", "['1', '2']"),
        ("The answer is ", ""),
        (r"never closed \boxed{12", r"never closed \boxed{12"),
        ("", ""),
        ("Answer: 3.5", "3.5"),
        ("Answer: and so on...", "and so on..."),
    ],
)
def test_extract_answer(response, answer):
    assert extract_final_answer(response) == answer


@pytest.mark.parametrize(
    ("response", "reference", "reward"),
    [
        ("She pays $1,200. #### 1,200", "1200", 1.0),
        ("the answer is 42.0", "42", 1.0),
        ("the answer is 0.5", "1/2", 1.0),
        ("the answer is 0.1", "0.10000000000000001", 0.0),  # exact: not equal after rounding to a float
        ("the answer is 42", "-42", 0.0),
        ("-42", "-42", 1.0),
        ("10 and then 42", "42", 1.0),  # without a marker the last number counts
        ("42 and then 10", "42", 0.0),
        ("no number", "42", 0.0),
        ("1/0", "0", 0.0),
        ("the answer is .5", "0.5", 1.0),
        ("1e3", "1000", 1.0),
        ("9" * 5000, "9", 0.0),
    ],
)
def test_numeric_exact(response, reference, reward):
    assert numeric_exact(response, reference) == reward


def test_numeric_exact_blames_a_reference_without_a_number():
    with pytest.raises(ValueError, match="holds no number"):
        numeric_exact("42", "forty-two")


def test_exact_and_contains():
    assert exact("Answer: blue", " blue ") == 1.0
    assert exact("Answer: Blue", "blue") == 0.0
    assert contains("I think it is PARIS, surely", "Paris") == 1.0
    assert contains("anything", "  ") == 0.0


@given(st.text(), st.text())
def test_graders_take_any_text(response, reference):
    for grader in (exact, contains):
        assert grader(response, reference) in (0.0, 1.0)
    assert numeric_exact(response, "1") in (0.0, 1.0)


@given(st.integers(-(10**9), 10**9))
def test_numeric_exact_finds_an_integer_however_written(n):
    assert numeric_exact(f"hence the answer is {n:,}.", str(n)) == 1.0
    assert numeric_exact(f"hence the answer is {n}", str(n + 1)) == 0.0


@pytest.mark.parametrize(
    ("response", "reference", "reward"),
    [
        (r"so $\boxed{\frac{1}{2}}$", "0.5", 1.0),
        (r"so $\boxed{2\sqrt{2}}$", r"\sqrt{8}", 1.0),
        (r"so $\boxed{x^2+2x+1}$", r"(x+1)^2", 1.0),
        (r"so $\boxed{3}$", "4", 0.0),
        ("no idea", "4", 0.0),
    ],
)
def test_math_verify(response, reference, reward):
    pytest.importorskip("math_verify")
    assert find_grader_by_name("math_verify")(response, reference) == reward


def test_grader_by_name_says_what_is_wrong():
    with pytest.raises(InputError, match=r"no grader 'fuzzy'.*numeric_exact"):
        find_grader_by_name("fuzzy")
    with pytest.raises(InputError, match="cannot be imported"):
        find_grader_by_name("no_such_module_at_all:f")
    with pytest.raises(InputError, match="'math' has no 'absent'"):
        find_grader_by_name("math:absent")
