"""Files: arrays as safetensors, the rest as JSON in the same file's header. No pickle.

One format serves checkpoints and saved models: a `kind`, a `version`, a JSON document and named arrays.
A checksum over all of it tells a damaged file from a whole one. A file is written next to its target and
moved into place, so a kill leaves the old file or the new one, never half of one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

from cglb.core.errors import StoreError

__all__ = ["check_regular", "read", "replace_file", "write"]

FORMAT = "cglb"
# characters of a document: a history of 50,000 steps has fewer, and parsed it takes less than 1 GB
MOST_TEXT = 1 << 25


def write(
    path: str | os.PathLike[str],
    kind: str,
    version: int,
    document: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Write atomically: a reader sees the old content or the new, whatever happens in between.

    Args:
        path: the file; its folder is made if there is none.
        kind: what the file holds, such as "model" or "checkpoint".
        version: the version of the format of this kind.
        document: what JSON can hold.
        arrays: named arrays of any shape.
    """
    path = Path(path)
    arrays = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    text = json.dumps(document)
    if len(text) > MOST_TEXT:
        raise StoreError(f"{path} would have {len(text)} characters of JSON, more than {MOST_TEXT}.")
    header = {
        "format": FORMAT,
        "kind": kind,
        "version": str(version),
        "document": text,
        "sha256": _checksum(text, arrays),
    }
    replace_file(path, to_bytes(arrays, header))


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` in the place of a file in one move, safe on the disk before it is seen.

    A symbolic link stays, and the file that it leads to is replaced.

    Raises:
        StoreError: if the path leads to something that is not a file, such as a device.
    """
    path = check_regular(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # a name of its own for every write: two threads may write one file, and the last one wins
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def check_regular(path: Path) -> Path:
    """The path that a symbolic link leads to, if that is a file or nothing yet.

    Raises:
        StoreError: if it is a folder, a device, a pipe or a socket, or a link that leads in a circle.
    """
    try:
        target = path.resolve()
        special = target.exists() and not target.is_file()
    except (OSError, RuntimeError) as error:
        raise StoreError(f"{path} cannot be followed to a file ({error}). Give another path.") from None
    if special:
        raise StoreError(f"{path} is not a regular file: give another path.")
    return target


def read(
    path: str | os.PathLike[str], kind: str, version: int
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The document and the arrays of a file of this kind and version.

    Raises:
        FileNotFoundError: if there is no such file.
        StoreError: if the file is damaged, not a regular file, or of another kind or version.
    """
    path = Path(path)
    if not check_regular(path).exists():
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError, KeyError) as error:
        raise StoreError(
            f"{path} is damaged or not a safetensors file ({error}). Restore it or save again."
        ) from None
    if header.get("format") != FORMAT or header.get("kind") != kind:
        found = header.get("kind", "no mark of this package")
        raise StoreError(f"{path} is not a cglb {kind}: found {found}.")
    if header.get("version") != str(version):
        raise StoreError(
            f"{path} is a cglb {kind} of version {header.get('version')}, but this release reads "
            f"version {version}. Load it with the release that wrote it and save it anew."
        )
    text = header.get("document", "")
    if len(text) > MOST_TEXT:
        raise StoreError(f"{path} has a document of {len(text)} characters, more than {MOST_TEXT}.")
    if header.get("sha256") != _checksum(text, arrays):
        raise StoreError(f"{path} is damaged: its checksum is wrong. Restore it or save again.")
    return parse_object(text, path, "Save it again."), arrays


def is_number(value: Any) -> bool:
    """Whether JSON has a number here. In Python a truth value is an int, but it is none."""
    return type(value) in (int, float)


def parse_object(text: str | bytes, path: Path, remedy: str) -> dict[str, Any]:
    """The JSON object that a file holds.

    Args:
        text: the object.
        path: the file, for messages.
        remedy: what a user can do about a damaged file.

    Raises:
        StoreError: if the text is something else.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is damaged: it is not JSON ({error}). {remedy}") from None
    if not isinstance(document, dict):
        raise StoreError(f"{path} is damaged: it is not a table of names. {remedy}")
    return document


def _checksum(text: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"\n{name} {array.dtype} {array.shape}\n".encode())
        digest.update(np.asarray(array, order="C").tobytes())
    return digest.hexdigest()
