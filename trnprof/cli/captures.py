"""Opening what a user named: one capture or a folder of them, with what must be said about each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from trnprof.analyzers.anatomy import measure_anatomy
from trnprof.analyzers.data_quality import assess_data_quality
from trnprof.analyzers.findings import find_findings
from trnprof.errors import InputDataError, UsageError
from trnprof.findings import DataQuality, Finding, data_quality
from trnprof.hardware import bandwidth_for, hardware_of
from trnprof.profile import Profile
from trnprof.readers import read_profile
from trnprof.readers.directory import captures_in
from trnprof.render.anatomy import AnatomyView
from trnprof.render.envelope import InputFile, sha256_of


@dataclass(frozen=True)
class OpenCapture:
    """One capture that was read."""

    path: Path
    profile: Profile


@dataclass(frozen=True)
class OpenCaptures:
    """What a user's path holds."""

    captures: tuple[OpenCapture, ...]
    unpaired_neffs: tuple[Path, ...]
    unreadable: tuple[tuple[Path, str], ...]
    """Captures of a folder that could not be read, and why; the others are still analysed."""


def open_captures(path: Path, *, neff: Path | None = None) -> OpenCaptures:
    """Read the capture at `path`, or each capture in the folder at `path`.

    Raises: InputMissingError, InputDataError for a capture that was named itself, or a folder without a readable one;
            UsageError for one NEFF and several captures.
    """
    folder = captures_in(path)
    if neff is not None and len(folder.captures) > 1:
        raise UsageError("--neff belongs to one capture; name that capture instead of the folder", path=path)
    if folder.captures == (path,):
        return OpenCaptures((OpenCapture(path, read_profile(path, neff=neff)),), (), ())
    captures, unreadable = [], []
    for capture in folder.captures:
        try:
            captures.append(OpenCapture(capture, read_profile(capture, neff=neff)))
        except InputDataError as error:
            unreadable.append((capture, error.message))
    if not captures:
        raise InputDataError(
            f"no capture in the folder can be read; the first: {unreadable[0][1]}", path=unreadable[0][0]
        )
    return OpenCaptures(tuple(captures), _without_capture(folder.neffs, captures), tuple(unreadable))


def _without_capture(neffs: tuple[Path, ...], captures: list[OpenCapture]) -> tuple[Path, ...]:
    """The NEFFs that none of the captures ran."""
    from trnprof.readers.neff import read_neff_uuid
    from trnprof.readers.ntff_container import uuid_matches

    ran = [uuid for capture in captures if (uuid := capture.profile.metadata.neff_uuid)]
    return tuple(neff for neff in neffs if not any(uuid_matches(uuid, read_neff_uuid(neff)) for uuid in ran))


def account(capture: OpenCapture, *, hardware: str | None, bandwidth: str | int) -> AnatomyView:
    """One capture's anatomy with its data quality.

    Raises: UsageError for an unknown hardware name; InputDataError for a capture without a window.
    """
    metadata = capture.profile.metadata
    table = hardware_of(metadata, hardware)
    used = bandwidth_for(metadata, table, bandwidth)
    try:
        result = measure_anatomy(capture.profile, table.name, used)
    except InputDataError as error:
        raise InputDataError(error.message, path=capture.path, code=error.code) from None
    return AnatomyView(
        path=str(capture.path),
        format=" ".join(filter(None, (metadata.format, metadata.format_version))),
        instance_type=metadata.instance_type,
        anatomy=result,
        data_quality=assess_data_quality(capture.profile, result),
        findings=find_findings(capture.profile, result, table),
    )


def findings_of(views: list[AnatomyView]) -> tuple[Finding, ...]:
    """The findings of every capture, the highest ceiling first; of several captures each says which input it is of."""
    found = [
        finding if len(views) == 1 else replace(finding, evidence={"input": index, **finding.evidence})
        for index, view in enumerate(views)
        for finding in view.findings
    ]
    return tuple(sorted(found, key=lambda finding: -(finding.ceiling_ns or 0)))


def folder_quality(opened: OpenCaptures) -> tuple[DataQuality, ...]:
    """What must be said of a folder beside its captures."""
    entries = [data_quality("DQ022", count=1, detail=f"{path.name}: {message}") for path, message in opened.unreadable]
    if opened.unpaired_neffs:
        names = ", ".join(path.name for path in opened.unpaired_neffs)
        entries.append(data_quality("DQ015", count=len(opened.unpaired_neffs), detail=f"no capture of {names}"))
    return tuple(entries)


def inputs_of(opened: OpenCaptures) -> tuple[InputFile, ...]:
    """The envelope's `inputs` of what was read."""
    return tuple(
        InputFile(
            path=str(capture.path),
            format=capture.profile.metadata.format,
            sha256=sha256_of(capture.path),
            provenance=str(capture.profile.metadata.provenance),
        )
        for capture in opened.captures
    )
