"""The account of a capture, whatever its format and size: from whole tables, in batches, or as it was kept.

Everything that a report needs of one capture is in its `CaptureAccount`, which is small; the capture's tables are let go
of before the next one is read, so that a folder of many ranks takes the memory of one capture for each process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from trnprof.analyzers.anatomy import Anatomy, measure_anatomy
from trnprof.analyzers.data_quality import assess_data_quality, assess_facts
from trnprof.analyzers.findings import find_findings
from trnprof.analyzers.steps import StepAnatomy, choose_steps, measure_steps, step_windows
from trnprof.cache import Key, ResultCache
from trnprof.errors import InputDataError
from trnprof.findings import DataQuality, Finding, data_quality
from trnprof.hardware import bandwidth_for, hardware_of
from trnprof.profile import CaptureIssue, Metadata, Profile, Provenance
from trnprof.readers import read_profile
from trnprof.readers.detect import Format, detect_format
from trnprof.readers.explorer_source import row_count
from trnprof.render.envelope import sha256_of
from trnprof.typed_json import from_plain

BATCH_READ_ROWS = 500_000
"""Explorer Parquet with more rows than this is read in batches, unless whole tables are asked for."""

ALL_STEPS = 0
"""AccountOptions.step for all of them."""

Progress = Callable[[int, int], None]
"""Called with (steps done since the last call, steps in all)."""


@dataclass(frozen=True)
class AccountOptions:
    """What an account depends on, beside the capture."""

    hardware: str | None = None
    bandwidth: str | int = "measured"
    neff: Path | None = None
    step: int | None = None
    """None: the whole window; ALL_STEPS: it and each of its steps; else the step of that number instead."""
    whole_tables: bool = False
    """Read a capture whole whatever its size: some findings need it, and it takes memory."""


@dataclass(frozen=True)
class CaptureAccount:
    """One capture's account and what must be said with it."""

    format: str
    format_version: str | None
    instance_type: str | None
    provenance: Provenance
    sha256: str
    neff_uuid: str | None
    rank: int | None
    """As the capture says; None: it does not."""
    anatomy: Anatomy
    steps: tuple[StepAnatomy, ...]
    """The steps asked for; of one step `anatomy` is its account."""
    step_count: int
    """How many the capture marks."""
    data_quality: tuple[DataQuality, ...]
    findings: tuple[Finding, ...]
    in_batches: bool
    """Read in batches: findings that need whole tables were not looked for."""


def account_capture(
    path: Path, options: AccountOptions, cache: ResultCache, *, progress: Progress | None = None
) -> CaptureAccount:
    """The account of the capture at `path`: as it was kept for this very content and these options, or made now.

    Raises: UsageError for an unknown hardware name or step; what read_profile and measure_anatomy raise.
    """
    key = _key(path, options)
    kept = cache.load(key)
    if kept is not None:
        try:
            return from_plain(CaptureAccount, kept)
        except (TypeError, ValueError, LookupError):
            pass
    try:
        made = _make(path, options, str(key["sha256"]), progress)
    except InputDataError as error:
        raise error if error.path else InputDataError(error.message, path=path, code=error.code) from None
    cache.store(key, made)
    return made


def _key(path: Path, options: AccountOptions) -> Key:
    """Everything that the account is made from. An NTFF's names come from its NEFF, wherever that lies."""
    neff = options.neff
    if neff is None and detect_format(path) is Format.NTFF:
        neff = _neff_beside(path)
    return {
        "kind": "account",
        "sha256": sha256_of(path),
        "neff_sha256": None if neff is None else sha256_of(neff),
        "hardware": options.hardware,
        "bandwidth": options.bandwidth,
        "step": options.step,
        "whole_tables": options.whole_tables,
    }


def _neff_beside(path: Path) -> Path | None:
    from trnprof.readers.neff_join import find_neff
    from trnprof.readers.ntff_container import read_container
    from trnprof.readers.vendor_tool import unread_version

    return None if unread_version(path) is not None else find_neff(path, read_container(path).uuid)


def _make(path: Path, options: AccountOptions, sha256: str, progress: Progress | None) -> CaptureAccount:
    with _readable(path, options.neff) as (place, issues):
        is_parquet = not options.whole_tables and detect_format(place) is Format.EXPLORER_PARQUET
        if is_parquet and row_count(place) > BATCH_READ_ROWS:
            return _in_batches(place, issues, options, sha256, progress)
        profile = read_profile(place, neff=options.neff)
    return _from_tables(replace(profile, issues=(*profile.issues, *issues)), options, sha256)


@contextmanager
def _readable(path: Path, neff: Path | None) -> Iterator[tuple[Path, tuple[CaptureIssue, ...]]]:
    """(the capture in a format that trnprof reads, what must be said of that)."""
    from trnprof.readers.vendor_tool import converted, unread_version

    version = unread_version(path) if detect_format(path) is Format.NTFF else None
    if version is None:
        yield path, ()
        return
    with converted(path, neff, version) as made:
        yield made.path, (CaptureIssue("DQ033", None, made.command),)


def _from_tables(profile: Profile, options: AccountOptions, sha256: str) -> CaptureAccount:
    table = hardware_of(profile.metadata, options.hardware)
    used = bandwidth_for(profile.metadata, table, options.bandwidth)
    steps: tuple[StepAnatomy, ...] = ()
    if options.step is not None:
        windows = choose_steps(profile.metadata, options.step or None)
        steps = measure_steps(profile, table.name, used, windows)
    if options.step:
        return _account(profile.metadata, sha256, steps[0].anatomy, steps, assess_data_quality(profile), ())
    anatomy = measure_anatomy(profile, table.name, used)
    findings = find_findings(profile, anatomy, table)
    return _account(profile.metadata, sha256, anatomy, steps, assess_data_quality(profile, anatomy), findings)


def _in_batches(
    path: Path, issues: tuple[CaptureIssue, ...], options: AccountOptions, sha256: str, progress: Progress | None
) -> CaptureAccount:
    from trnprof.readers.explorer_batches import ExplorerBatches
    from trnprof.streamed import account_batches

    total = 2 * row_count(path)

    def advance(rows: int) -> None:
        if progress is not None:
            progress(rows, total)

    batches = ExplorerBatches(path, progress=advance)
    table = hardware_of(batches.metadata, options.hardware)
    used = bandwidth_for(batches.metadata, table, options.bandwidth)
    windows = () if options.step is None else choose_steps(batches.metadata, options.step or None)
    found = account_batches(batches, table, used, windows)
    anatomy, findings = found.anatomy, found.findings
    if options.step:
        anatomy, findings = found.steps[0].anatomy, ()
    facts = replace(found.facts, issues=(*found.facts.issues, *issues))
    quality = (
        *assess_facts(facts, None if options.step else anatomy),
        data_quality(
            "DQ032",
            count=batches.row_count,
            detail=f"{batches.row_count:,} rows; findings not looked for: {', '.join(found.codes_left_out)}",
        ),
    )
    return replace(_account(batches.metadata, sha256, anatomy, found.steps, quality, findings), in_batches=True)


def _account(
    metadata: Metadata,
    sha256: str,
    anatomy: Anatomy,
    steps: tuple[StepAnatomy, ...],
    quality: tuple[DataQuality, ...],
    findings: tuple[Finding, ...],
) -> CaptureAccount:
    windows = step_windows(metadata)
    cut = [step.window for step in steps if step.window.cut is not None]
    if cut:
        detail = ", ".join(f"step {window.number} ({window.cut} outside)" for window in cut[:4])
        quality = (*quality, data_quality("DQ034", count=len(cut), detail=detail + (", ..." if len(cut) > 4 else "")))
    ranks = {core.rank for core in metadata.cores}
    return CaptureAccount(
        format=metadata.format,
        format_version=metadata.format_version,
        instance_type=metadata.instance_type,
        provenance=metadata.provenance,
        sha256=sha256,
        neff_uuid=metadata.neff_uuid,
        rank=next(iter(ranks)) if len(ranks) == 1 else None,
        anatomy=anatomy,
        steps=steps,
        step_count=len(windows),
        data_quality=quality,
        findings=findings,
        in_batches=False,
    )
