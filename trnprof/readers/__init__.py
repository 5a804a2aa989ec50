"""One file a format, all filling one Profile; which file reads what is decided by content, never by name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnprof.profile import Profile


def read_profile(path: Path, *, neff: Path | None = None) -> Profile:
    """The profile in `path`, whatever its format.

    path: an NTFF (of a version that trnprof does not read where the vendor's tool is installed), a legacy profiler JSON (plain or gzip), a summary JSON or text, or an Explorer Parquet directory.
    neff: the NEFF that the capture ran, where it does not lie beside it.

    Raises: InputMissingError if there is nothing at `path`; InputDataError if its content is none of the formats, is
            damaged, or is a NEFF (which holds a program, not a measurement).
    """
    from trnprof.readers.detect import Format, detect_format

    match detect_format(path):
        case Format.NTFF:
            from trnprof.readers.ntff import read_ntff
            from trnprof.readers.vendor_tool import converted, unread_version

            version = unread_version(path)
            if version is None:
                return read_ntff(path, neff=neff)
            with converted(path, neff, version) as made:
                return with_conversion(read_profile(made.path), made.command)
        case Format.EXPLORER_PARQUET:
            from trnprof.readers.explorer_parquet import read_explorer_parquet

            return read_explorer_parquet(path)
        case Format.LEGACY_JSON:
            from trnprof.readers.legacy_json import read_legacy_json

            return read_legacy_json(path)
        case Format.SUMMARY_JSON | Format.SUMMARY_TEXT:
            from trnprof.readers.summary import read_summary

            return read_summary(path)
        case Format.NEFF:
            from trnprof.errors import InputDataError

            raise InputDataError(
                "a NEFF holds a program and no measurement; give the NTFF that was captured from it, "
                "or look at the program with `trnprof info`",
                path=path,
            )


def with_conversion(profile: Profile, command: str) -> Profile:
    """The profile with the note that the vendor's tool converted the capture."""
    from dataclasses import replace

    from trnprof.profile import CaptureIssue

    return replace(profile, issues=(*profile.issues, CaptureIssue("DQ033", None, command)))
