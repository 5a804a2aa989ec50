"""Writing a result where the user asked for it: whole or not at all, never through a link, never over what is there."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trnprof.errors import UsageError


@contextmanager
def replaced_file(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A new file beside `path` to write to; it becomes `path` when the block ends without an error.

    A link at `path` is replaced, not followed.

    Raises: UsageError if `path` is there and not to be overwritten, is a directory, or cannot be written.
    """
    refuse_existing(path, overwrite)
    if path.is_dir() and not path.is_symlink():
        raise UsageError("a directory is there; name a file", path=path)
    with _temporary(path) as temporary:
        yield temporary
        refuse_existing(path, overwrite)
        temporary.replace(path)


@contextmanager
def replaced_directory(path: Path, suffix: str, *, overwrite: bool) -> Iterator[Path]:
    """A new directory beside `path` to fill; it becomes `path` when the block ends without an error.

    suffix: an existing directory is only replaced if it holds nothing but plain files that end so.

    Raises: UsageError if `path` is there and not to be overwritten, is no directory or a link, holds other files, or
            cannot be written.
    """
    refuse_existing(path, overwrite)
    if os.path.lexists(path):
        if path.is_symlink() or not path.is_dir():
            raise UsageError("a link or a file is there; name a directory", path=path)
        for child in path.iterdir():
            if child.is_symlink() or not child.is_file() or child.suffix != suffix:
                raise UsageError(
                    f"it holds other things than {suffix} files ({child.name!r}), so it is not replaced", path=path
                )
    with _temporary(path) as temporary:
        temporary.mkdir()
        yield temporary
        refuse_existing(path, overwrite)
        if not os.path.lexists(path):
            temporary.rename(path)
            return
        with _temporary(path) as former:
            path.rename(former)
            try:
                temporary.rename(path)
            except OSError:
                former.rename(path)
                raise


@contextmanager
def _temporary(path: Path) -> Iterator[Path]:
    """A name beside `path` that is not taken; whatever is there when the block ends is removed."""
    temporary = path.with_name(f".{path.name[:80]}.{secrets.token_hex(8)}")
    try:
        yield temporary
    except OSError as error:
        raise UsageError(f"cannot be written ({error.strerror or error})", path=path) from None
    finally:
        if temporary.is_dir() and not temporary.is_symlink():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            temporary.unlink(missing_ok=True)


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raise the UsageError that the functions above would, before work is done that would be for nothing."""
    if not path.name:
        raise UsageError("no file name in it; name the file to write", path=path)
    if not overwrite and os.path.lexists(path):
        raise UsageError("it is already there; name another, or ask to overwrite it (--force)", path=path)
