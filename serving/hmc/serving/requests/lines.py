"""Lines of UTF-8 files, one text each."""

from __future__ import annotations

from hmc.artifact.errors import InvalidRequestError

BOM = b"\xef\xbb\xbf"
BREAKS = str.maketrans("\n\r\t", "   ")


def decode_line(line: bytes, number: int, offset: int, name: str) -> str:
    """The text of a line, without its end, which is \\n or \\r\\n, and without a byte order mark in the first one.

    number: of the line, from 1. offset: bytes of the file before it. name: of the file. Raises InvalidRequestError with
    the offset of the first byte that is not UTF-8.
    """
    body = line.removeprefix(BOM) if number == 1 else line
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        at = offset + len(line) - len(body) + error.start
        raise InvalidRequestError(
            f"{name} is not UTF-8: byte 0x{body[error.start]:02x} at offset {at}, in line {number}; "
            "convert it first, for example `iconv -f ISO-8859-1 -t UTF-8`"
        ) from error
    return text.removesuffix("\n").removesuffix("\r")


def one_line(text: str) -> str:
    """The text with blanks for newlines and tabs, which separate lines and hypotheses in files."""
    return text.translate(BREAKS)
