"""The accounts of what a user named: one capture or a folder of them, side by side in processes, kept between runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from trnprof.accounts import AccountOptions, CaptureAccount, account_capture
from trnprof.analyzers.ranks import RankCapture, RankView, compare_ranks
from trnprof.cache import ResultCache, cache_folder
from trnprof.cli.progress import Progress
from trnprof.errors import InputDataError, UsageError
from trnprof.findings import DataQuality, data_quality
from trnprof.lean_start import leave_pandas_out, share_one_heap
from trnprof.parallel import in_processes, processor_count
from trnprof.readers.directory import captures_in, missing_ranks, rank_in_name
from trnprof.render.anatomy import AnatomyView
from trnprof.render.envelope import InputFile

PARALLEL_BYTES = 64 << 20
"""Captures that are smaller than this together are read here: starting a process takes longer."""

NAMED_RANKS = 8
"""Missing or empty ranks named one by one."""


@dataclass(frozen=True)
class PathAccount:
    """One capture that was accounted."""

    path: Path
    account: CaptureAccount

    @property
    def rank(self) -> int | None:
        """As the capture says, or its name, or its folder's."""
        if self.account.rank is not None:
            return self.account.rank
        own = rank_in_name(self.path)
        return rank_in_name(self.path.parent) if own is None else own

    @property
    def is_empty(self) -> bool:
        """Does it hold no event at all?"""
        return not any(core.event_count for core in self.account.anatomy.cores)


@dataclass(frozen=True)
class Accounts:
    """What a user's path holds."""

    captures: tuple[PathAccount, ...]
    """Those with events first counted; in the folder's order."""
    unpaired_neffs: tuple[Path, ...]
    unreadable: tuple[tuple[Path, str], ...]
    """Captures of a folder that could not be read, and why; the others are still accounted."""

    @property
    def is_of_ranks(self) -> bool:
        """Are these captures of different ranks?"""
        ranks = [capture.rank for capture in self.captures]
        return len(ranks) > 1 and None not in ranks and len(set(ranks)) == len(ranks)

    @property
    def of_one_step(self) -> bool:
        """Is each account that of one step alone?"""
        return all(
            len(account.steps) == 1 and account.steps[0].anatomy == account.anatomy
            for account in (capture.account for capture in self.captures)
        )

    def missing(self) -> tuple[int, ...]:
        """Ranks whose captures are not there, by the numbers of the others."""
        if not self.is_of_ranks:
            return ()
        present = {capture.rank for capture in self.captures if capture.rank is not None}
        present |= {rank for path, _ in self.unreadable if (rank := rank_in_name(path)) is not None}
        return missing_ranks(present)


def account_all(path: Path, options: AccountOptions, *, jobs: int | None, use_cache: bool) -> Accounts:
    """The account of the capture at `path`, or of each capture in the folder at `path`.

    jobs: processes side by side; None: as many as there are processors, where the captures are large enough.

    Raises: InputMissingError, InputDataError for a capture that was named itself, or a folder without a readable one;
            UsageError for one NEFF and several captures.
    """
    leave_pandas_out()
    share_one_heap()
    folder = captures_in(path)
    if options.neff is not None and len(folder.captures) > 1:
        raise UsageError("--neff belongs to one capture; name that capture instead of the folder", path=path)
    cache = ResultCache(cache_folder() if use_cache else None)
    if folder.captures == (path,):
        with Progress("reading") as progress:
            found = account_capture(path, options, cache, progress=progress.advance)
        return Accounts((PathAccount(path, found),), (), ())
    if jobs is None:
        jobs = processor_count() if sum(map(_size, folder.captures)) > PARALLEL_BYTES else 1
    captures: dict[int, PathAccount] = {}
    unreadable = {len(folder.captures) + place: entry for place, entry in enumerate(folder.rejected)}
    work = partial(_try_one, options=options, cache=cache)
    with Progress(f"{len(folder.captures)} captures") as progress:
        for place, result in in_processes(work, folder.captures, jobs=jobs):
            if isinstance(result, CaptureAccount):
                captures[place] = PathAccount(folder.captures[place], result)
            else:
                unreadable[place] = (folder.captures[place], result)
            progress.advance(1, len(folder.captures))
    failed = tuple(unreadable[place] for place in sorted(unreadable))
    if not captures:
        raise InputDataError(f"no capture in the folder can be read; the first: {failed[0][1]}", path=failed[0][0])
    ordered = tuple(captures[place] for place in sorted(captures))
    return Accounts(ordered, _without_capture(folder.neffs, ordered), failed)


def _try_one(path: Path, *, options: AccountOptions, cache: ResultCache) -> CaptureAccount | str:
    """One capture's account, or why there is none."""
    try:
        return account_capture(path, options, cache)
    except InputDataError as error:
        return error.message


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(_size(child) for child in path.iterdir())
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _without_capture(neffs: tuple[Path, ...], captures: tuple[PathAccount, ...]) -> tuple[Path, ...]:
    """The NEFFs that none of the captures ran."""
    if not neffs:
        return ()
    from trnprof.readers.neff import read_neff_uuid
    from trnprof.readers.ntff_container import uuid_matches

    ran = [uuid for capture in captures if (uuid := capture.account.neff_uuid)]
    return tuple(neff for neff in neffs if not any(uuid_matches(uuid, read_neff_uuid(neff)) for uuid in ran))


def views_of(accounts: Accounts) -> list[AnatomyView]:
    """What is printed of each capture."""
    return [
        AnatomyView(
            path=str(capture.path),
            format=" ".join(filter(None, (capture.account.format, capture.account.format_version))),
            instance_type=capture.account.instance_type,
            anatomy=capture.account.anatomy,
            data_quality=capture.account.data_quality,
            findings=capture.account.findings,
            steps=capture.account.steps,
            step_count=capture.account.step_count,
            rank=capture.rank,
        )
        for capture in accounts.captures
    ]


def ranks_of(accounts: Accounts) -> RankView:
    """The captures as one view."""
    return compare_ranks(
        tuple(
            RankCapture(capture.rank if accounts.is_of_ranks else None, place, capture.account.anatomy.cores)
            for place, capture in enumerate(accounts.captures)
        )
    )


def accounts_quality(accounts: Accounts, ranks: RankView) -> tuple[DataQuality, ...]:
    """What must be said of a folder beside its captures."""
    entries = [
        data_quality("DQ022", count=1, detail=f"{path.name}: {message}") for path, message in accounts.unreadable
    ]
    if accounts.unpaired_neffs:
        names = ", ".join(path.name for path in accounts.unpaired_neffs)
        entries.append(data_quality("DQ015", count=len(accounts.unpaired_neffs), detail=f"no capture of {names}"))
    if accounts.is_of_ranks:
        missing = accounts.missing()
        empty = [f"rank {c.rank} ({c.path.name})" for c in accounts.captures if c.is_empty]
        failed = [
            f"rank {rank} ({path.name})" for path, _ in accounts.unreadable if (rank := rank_in_name(path)) is not None
        ]
        told = [
            f"{what}: {_listed(names)}"
            for what, names in (
                ("missing", [f"rank {rank}" for rank in missing]),
                ("without events", empty),
                ("not readable", failed),
            )
            if names
        ]
        if told:
            count = len(missing) + len(empty) + len(failed)
            entries.append(data_quality("DQ035", count=count, detail="; ".join(told)))
    if accounts.is_of_ranks and ranks.collectives is not None and ranks.collectives.refused:
        entries.append(data_quality("DQ036", detail=ranks.collectives.refused))
    return tuple(entries)


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED_RANKS])
    return shown if len(names) <= NAMED_RANKS else f"{shown} and {len(names) - NAMED_RANKS} more"


def inputs_of_accounts(accounts: Accounts) -> tuple[InputFile, ...]:
    """The envelope's `inputs`."""
    return tuple(
        InputFile(str(capture.path), capture.account.format, capture.account.sha256, str(capture.account.provenance))
        for capture in accounts.captures
    )
