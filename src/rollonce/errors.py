"""The one kind of exception that is the user's to mend: the command line prints it as a sentence and exits with 2."""

from __future__ import annotations

from os import PathLike


class InputError(ValueError):
    """Bad input, said in a sentence that names the file, line or value and what to do about it.

    Args:
        message: What is wrong and what to do.
        file: The file it was found in, if any.
        line: Its 1-based line (or record) number, if any.
    """

    def __init__(self, message: str, *, file: str | PathLike[str] | None = None, line: int | None = None) -> None:
        self.message = message
        self.file = None if file is None else str(file)
        self.line = line
        where = ""
        if self.file is not None:
            where = f"{self.file}, line {line}: " if line is not None else f"{self.file}: "
        elif line is not None:
            where = f"line {line}: "
        super().__init__(where + message)


class MissingExtraError(InputError):
    """Something was asked for whose optional package is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs the package {package}: pip install 'rollonce[{extra}]'")
