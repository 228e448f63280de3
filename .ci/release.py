"""Makes a release in dist/: wheels, source distribution, bills of materials, licences of dependencies, checksums.

    python .ci/release.py [DIST]

Archives are built twice, the second time from the first source distribution. If the bytes differ, nothing is
released. Run it in the environment of `make test`: the bills list the versions that are installed there.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from email.message import Message
from email.parser import Parser
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOP = Path(__file__).resolve().parents[1]
BILLS = {"serve": (), "all": ("compile", "train", "plot", "hub", "tracing")}
"""Name of a bill → the extras that it covers."""
SUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """Why nothing was released."""


def build(source: Path, out: Path) -> tuple[Path, Path]:
    """Builds both archives. Returns (source distribution, wheel). Raises ReleaseError."""
    command = [sys.executable, "-m", "build", "--sdist", "--wheel", "--no-isolation", "--outdir", str(out), str(source)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise ReleaseError(f"the build failed:\n{ran.stdout}{ran.stderr}")
    (sdist,), (wheel,) = out.glob("headmask-*.tar.gz"), out.glob("headmask-*.whl")
    return sdist, wheel


def build_for_cpus(source: Path, folder: Path) -> Path:
    """Builds the wheel for CPUs alone, twice, from a checkout: a source distribution is for one runtime. Raises
    ReleaseError."""
    made = []
    for name in ("one", "other"):
        command = [
            sys.executable,
            "-m",
            "build",
            "--wheel",
            "--no-isolation",
            "--outdir",
            str(folder / name),
            str(source),
        ]
        environment = os.environ | {"HEADMASK_RUNTIME": "cpu"}
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if ran.returncode != 0:
            raise ReleaseError(f"the build for CPUs failed:\n{ran.stdout}{ran.stderr}")
        made += (folder / name).glob("headmask-*+cpu-*.whl")
    if sha256(made[0]) != sha256(made[1]):
        raise ReleaseError(f"{made[0].name} is not reproducible: compare {made[0]} and {made[1]} with diffoscope")
    return made[0]


def build_twice(source: Path, folder: Path) -> list[Path]:
    """Builds the archives in `folder`, again from the source distribution, and compares. Raises ReleaseError."""
    sdist, wheel = first = build(source, folder / "first")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(folder / "unpacked")
    (unpacked,) = (folder / "unpacked").iterdir()
    for one, other in zip(first, build(unpacked, folder / "second"), strict=True):
        if sha256(one) != sha256(other):
            raise ReleaseError(f"{one.name} is not reproducible: compare {one} and {other} with diffoscope")
    return [sdist, wheel]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(path).decode())


def installed(name: str) -> Distribution:
    """Raises ReleaseError if it is not installed here."""
    try:
        return distribution(name)
    except PackageNotFoundError as error:
        raise ReleaseError(f"{name} is not installed; run `make test` once, which installs everything") from error


def needed(requirements: Iterable[str], extras: Iterable[str], own: str) -> set[str]:
    """The names of all packages that a wheel needs with these extras, on this machine, with those that they need.

    requirements: its own, as in its metadata; own: its name, for extras that name other extras of it.
    """
    todo = [(Requirement(line), frozenset({"", *extras})) for line in requirements]
    lines, found, seen = list(requirements), set[str](), set[tuple[str, str]]()
    while todo:
        requirement, wanted = todo.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in wanted):
            continue
        name, more = canonicalize_name(requirement.name), frozenset({"", *requirement.extras})
        new = {(name, extra) for extra in more} - seen
        if not new:
            continue
        seen |= new
        if name != own:
            found.add(name)
        below = lines if name == own else installed(name).requires or []
        todo += [(Requirement(line), more) for line in below]
    return found


def restricted(bill: Mapping[str, Any], names: set[str], root: Mapping[str, Any], direct: set[str]) -> dict[str, Any]:
    """A bill with only the packages `names`, of the component `root`, which needs the packages `direct` itself."""
    components = [each for each in bill["components"] if canonicalize_name(each["name"]) in names]
    refs = {each["bom-ref"] for each in components}
    edges = [
        {**edge, "dependsOn": sorted(refs.intersection(edge.get("dependsOn", ())))}
        for edge in bill["dependencies"]
        if edge["ref"] in refs
    ]
    own = {each["bom-ref"] for each in components if canonicalize_name(each["name"]) in direct}
    edges.append({"ref": root["bom-ref"], "dependsOn": sorted(own)})
    metadata = {**bill["metadata"], "component": root}
    return {**bill, "metadata": metadata, "components": components, "dependencies": edges}


def component_of(wheel: Path) -> dict[str, Any]:
    """The wheel itself, for a bill."""
    metadata = metadata_of(wheel)
    name, version = metadata["Name"], metadata["Version"]
    return {
        "type": "application",
        "bom-ref": f"{name}=={version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "licenses": [{"license": {"id": metadata["License-Expression"]}}],
        "hashes": [{"alg": "SHA-256", "content": sha256(wheel)}],
    }


def licence(component: Mapping[str, Any]) -> str:
    """What a package says about its licence; where it says nothing, the files of its text."""
    said = [each.get("expression") or each["license"].get("id") or each["license"]["name"] for each in
            component.get("licenses", ())]  # fmt: skip
    if said:
        return ", ".join(dict.fromkeys(each.rpartition(" :: ")[2] for each in said))
    metadata = installed(component["name"]).metadata
    words, files = (metadata.get_all(field) or [] for field in ("License", "License-File"))
    return "".join(words).strip().split("\n")[0] or f"not declared; see {', '.join(files) or 'its source'}"


def licence_table(bill: Mapping[str, Any]) -> str:
    lines = [f"| {each['name']} | {each['version']} | {licence(each)} |" for each in bill["components"]]
    head = (
        "# Licences of dependencies\n\nWhat each package declares.\n\n| package | version | licence |\n|---|---|---|\n"
    )
    return head + "\n".join(sorted(lines, key=str.lower)) + "\n"


def bills(wheel: Path) -> dict[str, dict[str, Any]]:
    """Name → bill of materials. Raises ReleaseError if one does not follow the schema of CycloneDX."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--no-validate"]
    ran = subprocess.run([*command, "--sv", "1.6", "--of", "JSON"], capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise ReleaseError(f"cyclonedx-py failed:\n{ran.stderr}")
    everything, root = json.loads(ran.stdout), component_of(wheel)
    requirements = metadata_of(wheel).get_all("Requires-Dist") or []
    made = {}
    for name, extras in BILLS.items():
        names = needed(requirements, extras, root["name"])
        direct = names & {canonicalize_name(Requirement(line).name) for line in requirements}
        made[name] = restricted(everything, names, root, direct)
        problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(made[name]))
        if problem is not None:
            raise ReleaseError(f"the bill {name} does not follow the schema: {problem}")
    return made


def release(source: Path, dist: Path) -> list[Path]:
    """Writes everything into `dist`, in place of an earlier release. Returns the files."""
    with tempfile.TemporaryDirectory() as folder:
        archives = [*build_twice(source, Path(folder)), build_for_cpus(source, Path(folder))]
        made = bills(archives[1])
        dist.mkdir(parents=True, exist_ok=True)
        for old in (*dist.glob("headmask-*"), dist / SUMS):
            old.unlink(missing_ok=True)
        files = [dist / archive.name for archive in archives]
        for archive, path in zip(archives, files, strict=True):
            path.write_bytes(archive.read_bytes())
    stem = files[0].name.removesuffix(".tar.gz")
    for name, bill in made.items():
        files.append(dist / f"{stem}.{name}.cdx.json")
        files[-1].write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    files.append(dist / f"{stem}.licences.md")
    files[-1].write_text(licence_table(made["all"]), encoding="utf-8")
    sums = "".join(f"{sha256(path)}  {path.name}\n" for path in files)
    (dist / SUMS).write_text(sums, encoding="utf-8")
    return [*files, dist / SUMS]


def main() -> int:
    dist = Path(sys.argv[1]) if len(sys.argv) > 1 else TOP / "dist"
    try:
        for path in release(TOP, dist):
            sys.stderr.write(f"{path}\n")
    except ReleaseError as error:
        sys.stderr.write(f"nothing was released: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
