"""model.bin is read to the last byte, and nothing in a damaged or hostile one is believed."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.artifact.ctranslate2.converted import array, binary, string

from hmc.artifact import HmcError
from hmc.artifact.ctranslate2.binary import read_binary

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
ARRAYS = [
    array("a/weight", VALUES),
    array("a/weight_scale", np.array([2, 4], np.float32)),
    array("n", np.array(3, np.int8)),
]
WHOLE = binary(ARRAYS, [("b/weight", "a/weight")])


def written(tmp_path: Path, content: bytes) -> Path:
    (tmp_path / "model.bin").write_bytes(content)
    return tmp_path / "model.bin"


def test_arrays_scalars_and_aliases(tmp_path: Path) -> None:
    found = read_binary(written(tmp_path, WHOLE))
    assert (found.spec, found.revision) == ("TransformerSpec", 7)
    assert found.variables["a/weight"].floats().tolist() == VALUES.tolist()
    assert found.variables["b/weight"] is found.variables["a/weight"]
    assert found.variables["b/weight_scale"] is found.variables["a/weight_scale"], "an alias has the scale too"


@pytest.mark.parametrize("kind", ["float32", "int8", "int16", "int32", "float16", "bfloat16"])
def test_every_type(kind: str, tmp_path: Path) -> None:
    values = np.array([-2.0, 0.0, 1.0], np.float32)
    stored = (values.view(np.uint32) >> 16).astype(np.uint16) if kind == "bfloat16" else values.astype(kind)
    found = read_binary(written(tmp_path, binary([array("a", stored, kind)])))
    assert found.variables["a"].kind == kind
    assert found.variables["a"].floats().tolist() == values.tolist()


def test_every_cut_is_noticed(tmp_path: Path) -> None:
    for length in range(len(WHOLE)):
        with pytest.raises(HmcError, match=r"model\.bin .*copy or download it again|has version"):
            read_binary(written(tmp_path, WHOLE[:length]))


def test_no_size_in_the_file_is_believed(tmp_path: Path) -> None:
    """4 GiB of values, and 16 times as many, in a file of some bytes: refused before there is room for them."""
    huge = 0xFFFFFFFF
    for shape in ((huge,), (huge, huge), (2**16, 2**14)):
        size = int(np.prod([float(n) for n in shape]) * 4) & huge
        sizes = b"".join(struct.pack("<I", n) for n in shape)
        lie = string("a") + struct.pack("<B", len(shape)) + sizes + struct.pack("<BI", 0, size)
        tracemalloc.start()
        with pytest.raises(HmcError, match=r"ends within a|has the shape"):
            read_binary(written(tmp_path, binary([lie])))
        assert tracemalloc.get_traced_memory()[1] < 1e6
        tracemalloc.stop()
    many = struct.pack("<I", 6) + string("TransformerSpec") + struct.pack("<II", 7, huge)
    with pytest.raises(HmcError, match="ends within a number"):
        read_binary(written(tmp_path, many))


NAMED = {
    "has version 3 and not 6: convert the model again": struct.pack("<I", 3) + WHOLE[4:],
    "has 1 bytes after its end": WHOLE + b"\0",
    "is empty": b"",
    "holds n twice": binary([ARRAYS[2], ARRAYS[2]]),
    "c stands for d, which is no other array": binary(ARRAYS, [("c", "d")]),
    "n stands for a/weight, which is no other array": binary(ARRAYS, [("n", "a/weight")]),
    "no name where one must be": binary([b"\3\0abc" + ARRAYS[0][11:]]),
    "a has 9 dimensions, more than 4": binary([string("a") + b"\x09" + bytes(60)]),
    "a has an unknown type \\(9\\)": binary([string("a") + b"\0" + b"\x09" + bytes(8)]),
    "a has the shape \\[\\] of float32, and 8 bytes": binary([string("a") + b"\0\0" + struct.pack("<I", 8) + bytes(8)]),
}


@pytest.mark.parametrize("said", NAMED)
def test_what_is_wrong_is_named(said: str, tmp_path: Path) -> None:
    with pytest.raises(HmcError, match=said):
        read_binary(written(tmp_path, NAMED[said]))
