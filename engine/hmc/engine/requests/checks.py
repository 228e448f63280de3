"""Checks of values and of lines of files that callers give. Each raises InvalidRequestError, with what is allowed."""

from __future__ import annotations

from numbers import Integral, Real

from hmc.artifact.errors import InvalidRequestError, Violation
from hmc.artifact.git_lfs import refuse_pointer
from hmc.artifact.storage.rows import MARKS, conversion, null_bytes

MAX_INT32 = 2**31 - 1
"""Upper bound of whole numbers that have no smaller one: the protocol sends them as int32."""


def check_whole(name: str, value: object, low: int, high: int = MAX_INT32) -> None:
    """Raises InvalidRequestError unless `value` is a whole number from `low` to `high`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidRequestError(f"{name} {value!r}: choose a whole number")
    if not low <= int(value) <= high:
        bound = f"or more, up to {high}" if high >= MAX_INT32 else f"to {high}"
        raise InvalidRequestError(f"{name} {value}: choose {low} {bound}")


def check_number(name: str, value: object) -> None:
    """Raises InvalidRequestError unless `value` is a real number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidRequestError(f"{name} {value!r}: choose a number")


def check_within(name: str, value: float, low: float, high: float) -> None:
    """Raises InvalidRequestError unless `value` is a number from `low` to `high`; NaN is refused."""
    check_number(name, value)
    if not low <= value <= high:
        raise InvalidRequestError(f"{name} {value}: choose {low} to {high}")


def check_text(text: object, name: str) -> None:
    """Raises InvalidRequestError unless `text` is a `str` that can be encoded as UTF-8 (a lone surrogate cannot)."""
    if not isinstance(text, str):
        raise InvalidRequestError(f"{name} is {text!r:.100}: give a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"{name} cannot be written as UTF-8: character {error.start} is {text[error.start]!a}; decode the input "
            "with its own encoding"
        ) from error


def check_list(texts: object, name: str) -> None:
    """Raises InvalidRequestError unless `texts` is a sequence of texts that `check_text` accepts.

    The error names the index of the first bad text. A single `str` is refused: it would be read letter by letter.
    """
    if isinstance(texts, str | bytes):
        raise InvalidRequestError(f"{name} takes a list: put a single text in a list")
    if not (hasattr(texts, "__len__") and hasattr(texts, "__getitem__")):
        raise InvalidRequestError(f"{name} takes a list, and not a {type(texts).__name__}: put the texts in a list")
    for index in range(len(texts)):
        field = f"{name}[{index}]"
        try:
            check_text(texts[index], field)
        except InvalidRequestError as error:
            raise InvalidRequestError(str(error), [Violation(field, str(error))]) from error


BOM = b"\xef\xbb\xbf"
BREAKS = str.maketrans("\n\r\t", "   ")


OTHER_FORMS = MARKS | {b"\x1f\x8b": "it is packed by gzip: unpack it first"}
"""How files of other forms begin → what to do with them."""


def other_form(begin: bytes) -> str | None:
    """What to do with a file that begins so, if that is the beginning of another form."""
    return next((advice for mark, advice in OTHER_FORMS.items() if begin.startswith(mark)), None)


def what_to_do(begin: bytes) -> str:
    """Advice for a file that is not UTF-8, from its first bytes."""
    return other_form(begin) or conversion(begin)


def decode_line(line: bytes, number: int, offset: int, name: str) -> str:
    """The text of a line, without its end, which is \\n or \\r\\n, and without a byte order mark in the first one.

    number: of the line, from 1. offset: bytes of the file before it. name: of the file. Raises InvalidRequestError with
    the offset of the first byte that is not UTF-8, and for a null byte.
    """
    if number == 1:
        refuse_pointer(line, name)
    body = line.removeprefix(BOM) if number == 1 else line
    if number == 1 and (advice := other_form(body)):
        raise InvalidRequestError(f"{name} is not UTF-8: {advice}")
    if problem := null_bytes(body):
        raise InvalidRequestError(f"{name}: line {number} has {problem}")
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        at = offset + len(line) - len(body) + error.start
        raise InvalidRequestError(
            f"{name} is not UTF-8: byte 0x{body[error.start]:02x} at offset {at}, in line {number}; {conversion(body)}"
        ) from error
    return text.removesuffix("\n").removesuffix("\r")


def one_line(text: str) -> str:
    """The text with blanks for newlines and tabs, which separate lines and hypotheses in files."""
    return text.translate(BREAKS)
