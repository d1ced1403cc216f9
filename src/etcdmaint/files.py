"""A file that a person names, read whole: but a device has no end, and memory has.

What must not be read without a bound is read here, so that no file or pipe that was named by mistake
takes the machine with it. This module must not know what a file means.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from etcdmaint.errors import InvalidInput

MOST_OF_A_FILE = 4 << 20
"""Bytes: a configuration, certificates, a map of addresses. Kubernetes' own objects have 1.5 MiB."""
MOST_OF_A_VALUE = 16 << 20
"""Bytes: etcd takes 1.5 MiB in a request, and advises against a limit of more than 10."""


def read_whole(
    source: Path | BinaryIO, *, field: str, most: int = MOST_OF_A_FILE, name: str = ""
) -> bytes:
    """All of a file, or of a stream such as standard input; `most` in bytes.

    Raises InvalidInput where it cannot be read or has more. `field` or `name` is to tell which it is.
    """
    told = f"{name} " if name else ""
    try:
        if isinstance(source, Path):
            with source.open("rb") as file:
                data = file.read(most + 1)
        else:
            data = source.read(most + 1)
    except OSError as error:
        raise InvalidInput(field, f"{told}cannot be read: {error.strerror}") from error
    except ValueError:
        # No path holds a NUL.
        raise InvalidInput(field, f"{told}cannot be read: it is no name of a file") from None
    if len(data) > most:
        raise InvalidInput(
            field, f"{told}is larger than {most >> 20} MiB, and not read any further"
        )
    return data
