"""Kept results: found for the same content and options only; stale, damaged or misplaced ones are never trusted (S7)."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from trnprof import accounts as accounts_module
from trnprof import cache as cache_module
from trnprof.accounts import AccountOptions, CaptureAccount, account_capture
from trnprof.cache import ENVIRONMENT_VARIABLE, ResultCache, cache_folder
from trnprof.demo import published_step
from trnprof.typed_json import from_plain, to_plain
from trnprof.writers.explorer_parquet import write_explorer_parquet

KEY = {"kind": "test", "sha256": "abc", "options": [1, None]}


def only_entry(folder: Path) -> Path:
    (entry,) = folder.glob("*.json")
    return entry


def test_what_was_kept_is_found_under_its_key_only(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path / "kept")
    assert cache.load(KEY) is None
    cache.store(KEY, {"value": [1, 2.5, "ü", None, True]})
    assert cache.load(KEY) == {"value": [1, 2.5, "ü", None, True]}
    assert cache.load(KEY | {"sha256": "abd"}) is None
    assert ResultCache(tmp_path / "other").load(KEY) is None
    assert ResultCache(None).load(KEY) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('\\"value\\":1', '\\"value\\":2'),
        lambda text: text.replace("abc", "abd"),
        lambda text: "[]",
        lambda text: '{"key": 1}',
        lambda text: "[" * 100_000,
        lambda text: "\x00\xff",
    ],
)
def test_a_damaged_entry_is_made_again(tmp_path: Path, damage) -> None:  # type: ignore[no-untyped-def]
    cache = ResultCache(tmp_path)
    cache.store(KEY, {"value": 1})
    entry = only_entry(tmp_path)
    changed = damage(entry.read_text(encoding="utf-8"))
    assert changed != entry.read_text(encoding="utf-8")
    entry.write_text(changed, encoding="utf-8")
    assert cache.load(KEY) is None
    cache.store(KEY, {"value": 1})
    assert cache.load(KEY) == {"value": 1}


def test_another_version_s_entry_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A newer trnprof, and in a checkout a changed source, make a new result; the old one is never read as theirs."""
    cache = ResultCache(tmp_path)
    cache.store(KEY, 1)
    monkeypatch.setattr(cache_module, "__version__", "999.0")
    assert cache.load(KEY) is None
    monkeypatch.undo()
    assert cache.load(KEY) == 1
    monkeypatch.setattr(cache_module, "code_digest", lambda: "changed")
    assert cache.load(KEY) is None


def test_an_old_entry_under_a_new_name_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache copied from elsewhere, its file renamed to the name that this version looks for."""
    cache = ResultCache(tmp_path)
    cache.store(KEY, 1)
    old = only_entry(tmp_path)
    monkeypatch.setattr(cache_module, "__version__", "999.0")
    cache.store(KEY, 2)
    (new,) = [entry for entry in tmp_path.glob("*.json") if entry != old]
    new.write_bytes(old.read_bytes())
    assert cache.load(KEY) is None


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = ResultCache(tmp_path / "file" / "kept")
    cache.store(KEY, 1)
    assert cache.load(KEY) is None


def test_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setattr(cache_module, "MAX_ENTRIES", 3)
    cache = ResultCache(tmp_path)
    for number in range(5):
        cache.store({"number": number}, number)
        for entry in tmp_path.glob("*.json"):
            if json.loads(json.loads(entry.read_text())["content"]) == number:
                os.utime(entry, (number, number))
    assert [cache.load({"number": number}) for number in range(5)] == [None, None, 2, 3, 4]


def test_the_folder_is_the_user_s_or_the_one_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "")
    assert cache_folder() is None
    monkeypatch.delenv(ENVIRONMENT_VARIABLE)
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "trnprof"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    directory = tmp_path / "step@latest"
    write_explorer_parquet(published_step(), directory)
    return directory


def test_an_account_is_made_once(example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = ResultCache(tmp_path / "kept")
    made = account_capture(example, AccountOptions(), cache)
    assert from_plain(CaptureAccount, json.loads(json.dumps(to_plain(made)))) == made

    def never(*_: object, **__: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(accounts_module, "read_profile", never)
    assert account_capture(example, AccountOptions(), cache) == made
    with pytest.raises(AssertionError, match="read again"):
        account_capture(example, AccountOptions(bandwidth="spec"), cache)
    with pytest.raises(AssertionError, match="read again"):
        account_capture(example, AccountOptions(), ResultCache(None))
    summary = pq.read_table(example / "Metadata.parquet")
    pq.write_table(summary, example / "Metadata.parquet", compression="none")
    with pytest.raises(AssertionError, match="read again"):
        account_capture(example, AccountOptions(), cache)


def test_an_entry_of_another_shape_is_made_again(
    example: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole and well signed, but not what this version's account looks like."""
    kept = tmp_path / "kept"
    made = account_capture(example, AccountOptions(), ResultCache(kept))
    for wrong in ({"format": 1}, [], {**to_plain(made), "anatomy": None}):  # type: ignore[dict-item]
        monkeypatch.setattr(ResultCache, "load", lambda self, key, wrong=wrong: wrong)
        assert account_capture(example, AccountOptions(), ResultCache(kept)) == made
