"""Small files of models with wrong contents: an import ends with a checkpoint or with an error of HMC's own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.artifact.ctranslate2.converted import release_and_converted
from tests.artifact.m2m100.m2m100_writer import write_m2m100, write_nllb
from tests.artifact.marian.opus import opus_directory

from hmc.artifact import HmcError
from hmc.artifact.npz.yaml_text import parse_yaml
from hmc.pipelines.importing import import_model

VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**70,
    1.5,
    "",
    "x",
    "256k",
    [],
    [1, [2]],
    {},
    {"x": None},
    float("nan"),
)
"""Put in the place of every value of a file of JSON or YAML."""
CONTENTS = (
    b"", b"\0", b"\xff\xfe", b"null", b"[]", b"3", b'"x"', b"{}", b"{", b"[" * 100_000, b'{"a":' * 100_000,
    b"1" * 5000, b'{"vocab_size": ' + b"9" * 5000 + b"}", b"a: &a [*a]\n", b'{"\\ud800": 0}',
)  # fmt: skip
"""Put in the place of every whole file but the large ones."""
LARGEST = 200_000
"""Bytes of the largest file that counts as small."""

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # what other libraries warn of is not ours to fix


def pickled(folder: Path) -> None:
    import torch
    from safetensors.torch import load_file

    opus_directory(folder)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


WRITERS: dict[str, Callable[[Path], object]] = {
    "marian": opus_directory,
    "pickled": pickled,
    "m2m100": write_m2m100,
    "nllb": write_nllb,
    "npz": lambda folder: release_and_converted(folder.parent)[0].rename(folder),
    "ctranslate2": lambda folder: release_and_converted(folder.parent)[1].rename(folder),
}


@pytest.fixture(scope="module", params=list(WRITERS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param) / "model"
    WRITERS[request.param](folder)
    read(folder)
    return folder


def read(folder: Path) -> None:
    """Imports the model. No file of CTranslate2 names languages, so they are given."""
    of_ctranslate2 = (folder / "model.bin").is_file()
    import_model(
        folder,
        source_language="en" if of_ctranslate2 else None,
        target_language="de" if of_ctranslate2 else None,
    )


def files(folder: Path) -> Iterator[tuple[Path, bytes]]:
    for path in sorted(folder.iterdir()):
        yield path, path.read_bytes()


def ends_well(folder: Path) -> None:
    """Nothing but HmcError may come out. An import may also succeed."""
    with suppress(HmcError):
        read(folder)


def test_every_value_of_every_config(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "m")
    tried = 0
    for path, content in files(tmp_path / "m"):
        if path.suffix == ".json" and path.name not in ("vocab.json", "tokenizer.json"):
            raw = json.loads(content)
        elif path.name == "decoder.yml":
            raw = parse_yaml(content.decode(), path.name)
        else:
            continue
        for name in list(raw) if isinstance(raw, dict) else []:
            for value in VALUES:
                changed: dict[str, Any] = {**raw, name: value}
                path.write_text(json.dumps(changed))
                ends_well(tmp_path / "m")
                tried += 1
        path.write_bytes(content)
    assert tried >= len(VALUES)


def test_every_small_file_as_a_whole(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "m")
    for path, content in files(tmp_path / "m"):
        pieces = (content[: len(content) // 2], content[::-1], content + content) if len(content) < LARGEST else ()
        for changed in (*CONTENTS, *pieces):
            path.write_bytes(changed)
            ends_well(tmp_path / "m")
        path.unlink()
        ends_well(tmp_path / "m")
        path.write_bytes(content)


def test_a_few_aliases_do_not_become_many_values() -> None:
    lines = ["a0: &a0 [x,x,x,x,x,x,x,x]"]
    lines += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 6)]
    text = "\n".join(lines)
    assert len(text) < 300
    with pytest.raises(HmcError, match=r"model.yml, line 2: an alias \(\*a0\).* write its value out"):
        parse_yaml(text, "model.yml")
