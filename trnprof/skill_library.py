"""The bundled Agent Skills: found, read, and checked against the Agent Skills specification (agentskills.io)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trnprof.errors import InputDataError, InputMissingError, UsageError

SKILL_FILE = "SKILL.md"
_FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
_NAME_CHARACTERS, _DESCRIPTION_CHARACTERS, _COMPATIBILITY_CHARACTERS, _BODY_LINES = 64, 1024, 500, 500
_MAX_FILE_BYTES = 256 * 1024
_MAX_FILES = 64
_ACTS_ON_PARSING = {"--install-completion", "--show-completion", "--version"}
"""Options that do their work while the line is parsed: a skill that is only checked must not install anything."""


@dataclass(frozen=True)
class Skill:
    """One skill's folder, read whole."""

    name: str
    description: str
    files: dict[str, bytes]
    """Content by path inside the folder, with forward slashes; SKILL.md first."""

    def text(self, file: str = SKILL_FILE) -> str:
        """One file as text. Raises: UsageError for a file that the skill does not have."""
        if file not in self.files:
            raise UsageError(f"skill {self.name} has no file {file!r}; it has {', '.join(self.files)}")
        return self.files[file].decode("utf-8")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a skill."""

    path: str
    message: str


def bundled_folder() -> Path:
    """The folder of skills that came with trnprof."""
    from importlib import resources

    return Path(str(resources.files("trnprof.skills")))


def bundled_skills() -> tuple[Skill, ...]:
    """Every bundled skill, by name."""
    return tuple(read_skill(folder) for folder in skill_folders(bundled_folder()))


def bundled_skill(name: str) -> Skill:
    """The bundled skill `name`. Raises: UsageError if there is none."""
    skills = {skill.name: skill for skill in bundled_skills()}
    if name not in skills:
        raise UsageError(f"no skill {name!r}; there are {', '.join(skills)}")
    return skills[name]


def skill_folders(path: Path) -> tuple[Path, ...]:
    """`path` itself if it is a skill, else the skills right under it, by name.

    Raises: InputMissingError if there is no such folder, or no skill in it.
    """
    if not path.is_dir():
        raise InputMissingError("no such folder; name a skill's folder, or a folder of skills", path=path)
    if (path / SKILL_FILE).is_file():
        return (path,)
    found = tuple(sorted(child for child in path.iterdir() if (child / SKILL_FILE).is_file()))
    if not found:
        raise InputMissingError(f"no skill here: neither {SKILL_FILE} nor folders with one", path=path)
    return found


def read_skill(folder: Path) -> Skill:
    """Read a skill's folder.

    Raises: InputDataError for front matter that cannot be read, files that are no Markdown, or too much of them.
    """
    files: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*"), key=lambda path: (path.name != SKILL_FILE, str(path))):
        if path.is_dir() or path.name.startswith("."):
            continue
        if len(files) == _MAX_FILES or path.stat().st_size > _MAX_FILE_BYTES:
            raise InputDataError(
                f"a skill has at most {_MAX_FILES} files of {_MAX_FILE_BYTES >> 10} KiB; is this one?", path=path
            )
        files[path.relative_to(folder).as_posix()] = path.read_bytes()
    fields, _ = split_front_matter(files.get(SKILL_FILE, b""), folder / SKILL_FILE)
    return Skill(str(fields.get("name", "")), str(fields.get("description", "")), files)


def split_front_matter(content: bytes, path: Path) -> tuple[dict[str, str | dict[str, str]], str]:
    """(fields, body) of a SKILL.md.

    The fields are read as the part of YAML that skills use: `key: value` on one line, quoted or plain, a block of text
    after `>` or `|` (its lines joined by spaces), and one map of such lines under `metadata`. Raises: InputDataError for
    anything else.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputDataError("not UTF-8 text", path=path) from None
    found = re.match(r"---\r?\n(.*?)\r?\n---\r?\n(.*)\Z", text, re.DOTALL)
    if found is None:
        raise InputDataError("does not begin with front matter between two lines of ---", path=path)
    fields: dict[str, str | dict[str, str]] = {}
    inner: dict[str, str] | None = None
    block: str | None = None
    for number, line in enumerate(found[1].splitlines(), start=2):
        if block is not None and (not line.strip() or line.startswith("  ")):
            fields[block] = f"{fields[block]} {line.strip()}".strip()
            continue
        block = None
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if folded := re.fullmatch(r"([A-Za-z][\w-]*): +[|>][+-]?", line):
            block, inner = folded[1], None
            fields[block] = ""
            continue
        entry = re.fullmatch(r"( {2,})?([A-Za-z][\w-]*):(?: +(.*))?", line)
        if entry is None:
            raise InputDataError(f"line {number}: not `key: value` on one line", path=path)
        indent, key, value = entry[1], entry[2], _scalar(entry[3] or "", number, path)
        target = fields if not indent else inner
        if target is None or key in target:
            raise InputDataError(f"line {number}: {key!r} is out of place or given twice", path=path)
        if not indent and not entry[3]:
            inner = {}
            fields[key] = inner
        else:
            target[key] = value
            inner = inner if indent else None
    return fields, found[2]


def _scalar(text: str, number: int, path: Path) -> str:
    text = text.strip()
    if text[:1] in ("'", '"'):
        if len(text) < 2 or text[-1] != text[0] or text[0] in text[1:-1]:
            raise InputDataError(f"line {number}: a quote without its partner", path=path)
        return text[1:-1]
    if text[:1] in tuple("[{&*!|>%@`") or ": " in text or " #" in text:
        raise InputDataError(f"line {number}: quote this value; plain YAML would read it as something else", path=path)
    return text


def check_skill(folder: Path) -> tuple[Problem, ...]:
    """What is wrong with a skill: the specification's rules, links that lead nowhere, and what trnprof asks of a skill.

    trnprof's own rules: Markdown only, so that installing one runs nothing; every `trnprof` line is a command that parses.
    """
    problems: list[Problem] = []
    try:
        skill = read_skill(folder)
        fields, body = split_front_matter(skill.files.get(SKILL_FILE, b""), folder / SKILL_FILE)
    except InputDataError as error:
        return (Problem(str(error.path or folder), error.message),)

    def wrong(message: str, file: str = SKILL_FILE) -> None:
        problems.append(Problem(str(folder / file), message))

    name, description = fields.get("name"), fields.get("description")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) or len(name) > _NAME_CHARACTERS:
        wrong(f"name must be 1 to {_NAME_CHARACTERS} of a-z, 0-9 and single hyphens inside")
    elif name != folder.resolve().name:
        wrong(f"name {name!r} is not the folder's name {folder.resolve().name!r}")
    if not isinstance(description, str) or not 0 < len(description) <= _DESCRIPTION_CHARACTERS:
        wrong(f"description must have 1 to {_DESCRIPTION_CHARACTERS} characters")
    if len(fields.get("compatibility", "")) > _COMPATIBILITY_CHARACTERS:
        wrong(f"compatibility must have at most {_COMPATIBILITY_CHARACTERS} characters")
    for key in sorted(set(fields) - _FIELDS):
        wrong(f"front matter has {key!r}, which the specification does not know")
    if len(body.splitlines()) > _BODY_LINES:
        wrong(f"more than {_BODY_LINES} lines: move detail to references/")
    for file in skill.files:
        if not file.endswith(".md"):
            wrong("not Markdown: a skill here is text only", file)
            continue
        text = skill.files[file].decode("utf-8", "replace")
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
            inside = (folder / file).parent / target
            if not inside.is_file() or folder.resolve() not in inside.resolve().parents:
                wrong(f"link to {target}, which is not in the skill", file)
        for command in trnprof_lines(text):
            complaint = command_error(command)
            if complaint is not None:
                wrong(f"`{command}`: {complaint}", file)
    return tuple(problems)


def trnprof_lines(markdown: str) -> list[str]:
    """Every `trnprof ...` command of a Markdown text: lines of code blocks (joined over a trailing backslash), code spans.

    A span that only names a command (`trnprof fit`, `trnprof nki run`) is a mention and no line to run.
    """
    commands: list[str] = []
    outside: list[str] = []
    for index, part in enumerate(re.split(r"^```[^\n]*\n", markdown, flags=re.MULTILINE)):
        if index % 2 == 0:
            outside.append(part)
            continue
        joined = re.sub(r"\\\n\s*", "", part)
        commands += [found[1] for line in joined.splitlines() if (found := re.match(r"\s*(?:\$ )?(trnprof\b.*)", line))]
    for part in outside:
        spans = re.findall(r"`(trnprof [^`\n]+)`", part)
        commands += [span for span in spans if not re.fullmatch(r"trnprof (?:(?:nki|engine|skills) )?[\w-]+", span)]
    commands = [one for command in commands for one in command.split(" && ") if one.startswith("trnprof ")]
    return [re.sub(r"\s+#.*", "", command).rstrip() for command in commands]


@cache
def _application() -> Any:
    from typer.main import get_command

    from trnprof.cli import build_app

    return get_command(build_app())


def command_error(command: str) -> str | None:
    """Why the command line does not parse (nothing of it is run); None if it does. `|` and what follows is left out."""
    import shlex

    import typer

    from trnprof.cli import ClickException

    words = shlex.split(command.split(" | ")[0])[1:]
    node, name, context = _application(), "trnprof", None
    if not words or _ACTS_ON_PARSING & {word.partition("=")[0] for word in words}:
        return None
    try:
        while True:
            context = node.make_context(name, words, parent=context)
            rest = [*getattr(context, "_protected_args", ()), *context.args]
            if not hasattr(node, "resolve_command"):
                return None
            if not rest:
                return "names no command"
            name, node, words = node.resolve_command(context, rest)
    except typer.Exit:  # --version, --help
        return None
    except Exception as error:
        if isinstance(error, ClickException):
            return str(error.format_message())  # type: ignore[attr-defined]
        raise
