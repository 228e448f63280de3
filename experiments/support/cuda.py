"""What the experiments for a GPU share: the device, or stand-ins for its libraries, and levels with other options.

Over the stand-ins (`--libraries FOLDER`) an experiment runs from beginning to end without a GPU, which tests the
experiment. Its numbers mean nothing there.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import onnxruntime
import torch

from experiments.support.counting.libraries import HELP, check_folder, environment_with
from experiments.support.counting.steps import answering
from experiments.support.counting.watching import Watch
from hmc.artifact.errors import DeviceUnavailableError
from hmc.artifact.model.architecture import Architecture
from hmc.engine.runtime.device import cuda_available

MARK = "HMC_EXPERIMENT_STAND_IN"
"""Set in the environment of a process that runs over the stand-ins."""
WAYS: dict[str, dict[str, str]] = {
    "served": {},
    "uncaptured": {"enable_cuda_graph": "0"},
    "uncaptured, cudnn": {"enable_cuda_graph": "0", "sdpa_kernel": "0"},
    "captured, cudnn": {"enable_cuda_graph": "1", "sdpa_kernel": "0"},
    "captured": {"enable_cuda_graph": "1", "sdpa_kernel": "17"},
}
"""Name → options of the CUDA provider that replace HMC's own. `sdpa_kernel` 0 lets ONNX Runtime choose attention
kernels, which may be cuDNN's; 17 leaves cuDNN out."""


def over_stand_ins() -> bool:
    """Whether this process runs over the stand-ins."""
    return MARK in os.environ


def add_libraries_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--libraries`."""
    parser.add_argument("--libraries", type=Path, help=f"run without a GPU, to test this script: {HELP}")


def restarted(module: str, libraries: Path | None) -> int | None:
    """With `libraries`, runs the whole command again over the stand-ins, and returns its status. None: go on here.

    Raises DeviceUnavailableError if there is neither a GPU nor a folder of stand-ins.
    """
    if over_stand_ins():
        print("*** Over stand-ins for CUDA's libraries: nothing is computed, and every number below means nothing. ***")
        return None
    if libraries is None:
        if not (cuda_available() and torch.cuda.is_available()):
            raise DeviceUnavailableError(
                "this needs a CUDA device that ONNX Runtime and PyTorch see (or --libraries, to test the script)"
            )
        return None
    environment = {**environment_with(check_folder(libraries)), MARK: "1"}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run([sys.executable, "-m", module, *sys.argv[1:]], check=False, env=environment).returncode


def device_name() -> str:
    """The name of the GPU."""
    return "stand-in" if over_stand_ins() else torch.cuda.get_device_name()


def watched() -> Watch:
    """Watches ONNX Runtime from now on."""
    onnxruntime.set_default_logger_severity(3)
    watch = Watch()
    watch.begin()
    return watch


def answer_for(watch: Watch, arch: Architecture) -> None:
    """Over the stand-ins, the runs of models of this architecture get made-up answers from now on, each sentence as
    long as its limit."""
    if over_stand_ins():
        answering(watch, arch)
