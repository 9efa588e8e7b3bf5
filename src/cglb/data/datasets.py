"""Regression data sets as plain NumPy arrays, for examples, tests and the paper's experiments.

`robot_arm` simulates one, `bundled` takes one of scikit-learn's, and `load` takes any in `names`. It
looks for `NAME.csv.gz` (no header, target last) in `folder`, or in the folder `$CGLB_DATA` if none is
given, then in the cache (`$CGLB_CACHE`, else `$XDG_CACHE_HOME/cglb`, else `~/.cache/cglb`). If it finds
no file, it downloads one into the cache.

Every file is checked, wherever it comes from: the SHA-256 of the file or of its numbers must match. So
the same numbers may be compressed in another way, but no digit may change.
"""

import gzip
import hashlib
import io
import os
import tempfile
import zlib
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np

from cglb.core.cache import cache_folder
from cglb.core.errors import DatasetError
from cglb.data.arm import robot_arm
from cglb.data.dataset import Dataset, Split

__all__ = ["Dataset", "Split", "available", "bundled", "load", "names", "places", "robot_arm"]

Folder = str | os.PathLike[str] | None
# The repository treforevans/uci_datasets (MIT) repackages the UCI and Delve sets.
_BASE = "https://raw.githubusercontent.com/treforevans/uci_datasets/master/uci_datasets"
PUBLIC_URL = _BASE + "/{name}/data.csv.gz"
_BUNDLED = ("diabetes",)
MOST_BYTES = 1 << 26  # of text in a file; the largest known data set has a tenth of it
_FILE_SHA256 = {
    "airfoil": "1cce82516ac9e564fba52f55d817eb147fc39085f5d7b958ad15b92f4207f23e",
    "bike": "411f76ae426c0e348a2629dcf6b3b29102c7db465eae780a3454c39db1dfac4f",
    "concrete": "542c5d9a0d301bdb47550280398dcbbe2fb8404631fc945de1ea6df9ade741c6",
    "elevators": "e39bc18a80ec3611e4fd76d0f86ee377e96ba21b568b9997576d538dafe56b7b",
    "energy": "431b6df04243db782bbcd45e408373a654334496ebe5d9c9985ab2e826a39f51",
    "kin40k": "9bee7f2a9f39aa61a015f239378368601fb3978c5bb9a96433e88a55d40883ba",
    "pol": "1c16126352954571e78f52d5a9d1b947a38655885d7cadd9407a4c9615fe4e04",
    "protein": "f709d0107c3ee90ab019b9e5d77fc2ae182158958cb70b1903236a51334fd01b",
    "pumadyn32nm": "10d1698944e0f6e586f2781e4b62c17c05174d4c6cdb6fb824a3e5a1b3630ae4",
    "wine": "e2ca3346651ddb43fbc6a1355e70e74b7ce68f93059e04405e9cb749c219eae2",
    "yacht": "88ec8ea1a979ab0628a54392822c60b3699ea22541e912e83246f7d49f5adad1",
}
_NUMBERS_SHA256 = {  # of "ROWSxCOLUMNS", then the rows as little-endian float64, target last
    "airfoil": "f5a5550c94dc2fb0e58e2ee434eb74c10de678748420365e3a05b6aeb5034d2f",
    "bike": "d6d90b30f9da8014b4e7a915b47a094663f77eeee7aa147559d524ea4eee663e",
    "concrete": "5c0c28a8433b4eb9753bdb4b5e862c79cc30cf66af5ed760529b0203f4afb2f6",
    "elevators": "915e12b15c938a7e06351fc8c34d112d63d16b7906e51b921b85c50b29e8d6e7",
    "energy": "eed6609431a7726584b6e866fbd194d2335307ac75d5dcf89dd915d2a1203d1b",
    "kin40k": "76344d489c02b64dccc09224e9269f8366a4fe7c0d9021eeb42a97f4607ef313",
    "pol": "5b28e0f48235d6ccbc3c0b7a0626b6ad7dbbafeb0a1d88a009b13cbe4bc4033d",
    "protein": "3416cdf9b9cd490d4fc3aa078c55d2077b2b5d69028e0ed5a6ffb67a715d6d69",
    "pumadyn32nm": "eda3aec6907412be6c368d5e1d7ffa27f4f01a31b51eedd8a332138e6bbbddc4",
    "wine": "ea1be53521b5aed62718615645699a006d00af6a4ef5ca33471cb038300fdb49",
    "yacht": "05a6368f3391ca47ec1c1200614904e3dbf5b488ef148b385d5fb9665fb1c78b",
}


def names() -> list[str]:
    """The names that `load` takes."""
    return [*_FILE_SHA256, *_BUNDLED]


def places(name: str, folder: Folder = None) -> list[Path]:
    """The files that `load` looks for before it downloads; none for a bundled set."""
    if name not in names():
        raise ValueError(f"No data set is called {name!r}. Choose from: {', '.join(names())}.")
    if name in _BUNDLED:
        return []
    folders = filter(None, (folder or os.environ.get("CGLB_DATA"), cache_folder()))
    return [Path(place).expanduser() / f"{name}.csv.gz" for place in folders]


def available(name: str, folder: Folder = None) -> bool:
    """Whether `load` finds this set without a download."""
    return any(path.is_file() for path in places(name, folder)) or name in _BUNDLED


def bundled(name: str) -> Dataset:
    """A regression set that ships with scikit-learn, in original units: "diabetes" (442 rows)."""
    if name not in _BUNDLED:
        raise ValueError(f"No bundled data set is called {name!r}. Available: {_BUNDLED[0]}.")
    from sklearn.datasets import load_diabetes  # slow to import and needed only here

    X, y = map(np.asarray, load_diabetes(return_X_y=True, scaled=False))
    columns = ("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6")
    return Dataset(name, X, y, columns, "progression")


def load(name: str, folder: Folder = None, progress: bool = True) -> Dataset:
    """The set called `name`, from a local file or, without one, downloaded into the cache folder.

    The environment variable `CGLB_DATA_URL` replaces the public address.

    Args:
        name: one of `names()`.
        folder: where to look first, instead of `CGLB_DATA`.
        progress: whether to show a progress bar on stderr.

    Raises:
        DatasetError: if no file is found or downloaded, or if it is the wrong one.
    """
    looked = places(name, folder)
    if name in _BUNDLED:
        return bundled(name)
    for path in filter(Path.is_file, looked):
        remedy = "Delete or replace it: without a local file the set is downloaded."
        return _parse(name, path.read_bytes(), str(path), remedy)
    template = os.environ.get("CGLB_DATA_URL") or PUBLIC_URL
    if "{name}" not in template or not template.startswith(("https://", "http://")):
        raise ValueError(f"CGLB_DATA_URL={template!r} must be http(s) and contain {{name}}.")
    url, cached = template.replace("{name}", name), looked[-1]
    remedy = (
        f"Looked for: {', '.join(map(str, looked))}. Set CGLB_DATA to a folder with {name}.csv.gz, "
        "or CGLB_DATA_URL to another source, or CGLB_CACHE to another folder for downloads."
    )
    try:
        content = _download(name, url, progress)
        dataset = _parse(name, content, url, remedy)  # before it is stored, so that no bad file is
        _write(cached, content)
        return dataset
    except (OSError, HTTPException) as error:
        if isinstance(error, HTTPError):
            error.close()  # it keeps a socket open
        problem = f"No local file has data set {name}, and downloading {url} to {cached} failed"
        raise DatasetError(f"{problem} ({error}). {remedy}") from error


def _download(name: str, url: str, progress: bool) -> bytes:
    """The bytes at `url`.

    Raises:
        OSError: if the download fails or ends early.
    """
    from rich.console import Console  # not at the top: most calls download nothing
    from rich.progress import Progress

    content = bytearray()
    bar = Progress(console=Console(stderr=True), transient=True, disable=not progress)
    with urlopen(url, timeout=30) as answer, bar:  # no data for 30 seconds is a failure
        size = int(answer.headers.get("Content-Length") or 0)
        task = bar.add_task(f"Downloading {name}", total=size or None)
        while chunk := answer.read(1 << 16):
            content += chunk
            bar.update(task, completed=len(content))
    if len(content) < size:  # urllib does not report this
        raise OSError(f"cut short: {len(content)} of {size} bytes received")
    return bytes(content)


def _parse(name: str, content: bytes, origin: str, remedy: str) -> Dataset:
    """The data set in the bytes of a gzip'd CSV file, checked by its checksum.

    Args:
        name: the data set.
        content: the bytes of the file.
        origin: the path or address of the file, for messages.
        remedy: what the user can do, for messages.

    Raises:
        DatasetError: if it is not this data set.
    """
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES >> 20} MB of text, which no known data set has")
        text = raw.decode("ascii")
        table = np.loadtxt(text.splitlines(), delimiter=",", ndmin=2)
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise DatasetError(f"{origin} is not a complete gzip'd CSV file ({error}). {remedy}") from error
    found = hashlib.sha256(content).hexdigest()
    shape = "{}x{}".format(*table.shape).encode()
    numbers = hashlib.sha256(shape + table.astype("<f8").tobytes()).hexdigest()
    if found != _FILE_SHA256[name] and numbers != _NUMBERS_SHA256[name]:
        raise DatasetError(
            f"{origin} is not the data set {name}: expected SHA-256 {_FILE_SHA256[name]}, found "
            f"{found}, and its numbers differ too. {remedy}"
        )
    return Dataset(name, table[:, :-1], table[:, -1])


def _write(path: Path, content: bytes) -> None:
    """Write a file into the cache atomically, so that no reader sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        draft = Path(scratch, path.name)
        draft.write_bytes(content)
        draft.replace(path)
