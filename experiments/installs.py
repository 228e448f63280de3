"""Installs a wheel into new environments of the Python that runs this file, and uses each: what a user would do first.

    python3.12 experiments/installs.py dist/headmask-0.1.0-py3-none-any.whl --extras base compile train

It needs the standard library only, so that any Python can run it. `base` serves a bundle (--bundle) and translates with
it, `compile` compiles the embedded model and translates, `train` trains a small model for a few updates, compiles it
and translates. Versions are those of constraints.txt beside this folder. A build of PyTorch that pip should take goes
into the environment first: --torch ARGUMENTS. One line of JSON is printed for each extra.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
TEXT = "A dog runs across the grass."
VERSIONS = "import json, onnxruntime, numpy; print(json.dumps([onnxruntime.__version__, numpy.__version__]))"
DATA = "from importlib.resources import files; print(files('hmc.cli') / 'demo_data')"
EXTRAS = {"base": "", "compile": "[compile]", "train": "[compile,train]"}


class StepError(Exception):
    """A command failed; its last lines."""


class Environment:
    """A new virtual environment in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "venv", with_pip=True)
        self._bin = folder / "venv" / "bin"

    def run(self, *command: str, stdin: str | None = None) -> str:
        """Runs a command of the environment, and returns what it prints. Raises StepError."""
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        environment["HMC_CACHE"] = str(self.folder / "cache")
        ran = subprocess.run(
            [str(self._bin / command[0]), *command[1:]], cwd=self.folder, env=environment, input=stdin,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if ran.returncode != 0:
            raise StepError(f"{shlex.join(command)}: {' | '.join((ran.stderr or ran.stdout).splitlines()[-4:])}")
        return ran.stdout.strip()

    def translation(self, bundle: str | Path) -> str:
        """TEXT, translated with a bundle."""
        return self.run("hmc", "translate", "--bundle", str(bundle), TEXT)


def use(environment: Environment, extra: str, bundle: Path | None) -> str:
    """Does what the extra is for, and returns the translation at its end."""
    if extra == "base":
        if bundle is None:
            raise StepError("base: give a bundle with --bundle")
        return environment.translation(bundle)
    data = Path(environment.run("python", "-c", DATA))
    if extra == "compile":
        options = ("--target-heads", "36", "--precision", "int8", "--calibrate", str(data / "calibration.en"))
        environment.run("hmc", "compile", str(data / "checkpoint"), *options, "-o", "bundle")
        return environment.translation("bundle")
    pair = f"{data / 'test.en'} {data / 'test.de'}"
    settings = [f'data.train=["{pair}"]', f'data.dev="{pair}"', "train.steps=4", "train.warmup_steps=1"]
    settings += ["train.cooldown_steps=1", "tokenizer.vocab_size=400", "model.d_model=32", "model.ffn_dim=64"]
    settings += ["model.heads=4", "run.eval_sentences=4", "run.precision=32-true"]
    chosen = [word for setting in settings for word in ("--set", setting)]
    environment.run("hmc", "train", str(TOP / "recipes" / "demo.toml"), *chosen, "--out", "run")
    environment.run("hmc", "compile", "run/final", "--precision", "fp32", "-o", "bundle")
    return environment.translation("bundle") or "(no words: the model has learned nothing yet)"


def tried(wheel: Path, extra: str, bundle: Path | None, torch: str | None) -> dict[str, object]:
    """Installs and uses one extra. `error` is there if a step failed."""
    found: dict[str, object] = {"python": platform.python_version(), "machine": platform.machine(), "extra": extra}
    with tempfile.TemporaryDirectory() as folder:
        try:
            environment = Environment(Path(folder))
            pip = ("python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile")
            if extra == "train" and torch is not None:
                environment.run(*pip, *shlex.split(torch))
            environment.run(*pip, "-c", str(TOP / "constraints.txt"), f"{wheel}{EXTRAS[extra]}")
            found["onnxruntime"], found["numpy"] = json.loads(environment.run("python", "-c", VERSIONS))
            environment.run("python", "-m", "pip", "check")
            found["translation"] = use(environment, extra, bundle)
        except StepError as error:
            found["error"] = str(error)
    return found


def main() -> None:
    """Exits with 1 if one of the extras cannot be installed or used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--extras", nargs="+", choices=list(EXTRAS), default=["base", "compile"])
    parser.add_argument("--bundle", type=Path, help="bundle that `base` serves")
    parser.add_argument("--torch", help="arguments of `pip install` for PyTorch, before the wheel")
    asked = parser.parse_args()
    bundle = None if asked.bundle is None else asked.bundle.resolve()
    results = []
    for extra in asked.extras:
        results.append(tried(asked.wheel.resolve(), extra, bundle, asked.torch))
        print(json.dumps(results[-1], ensure_ascii=False), flush=True)
    sys.exit(any("error" in result for result in results))


if __name__ == "__main__":
    main()
