"""`trnprof anatomy` of a step log: a run of the bundled engine on a CPU."""

from __future__ import annotations

from pathlib import Path

from trnprof.cli.answer import deliver
from trnprof.cli.options import OutputFormat
from trnprof.errors import UsageError
from trnprof.render.envelope import InputFile, Report, sha256_of


def step_log_anatomy(path: Path, *, form: OutputFormat, output: Path, force: bool, html: Path | None) -> int:
    """Read, account and deliver.

    Raises: InputDataError for a damaged log; UsageError for --html, which shows device profiles only.
    """
    from trnprof.analyzers.cpu_steps import account_cpu_steps
    from trnprof.readers.step_log import read_step_log
    from trnprof.render.cpu_steps import cpu_steps_json, cpu_steps_markdown, cpu_steps_text

    if html is not None:
        raise UsageError("--html shows a device profile; a run on a CPU has text, json and md", path=path)
    anatomy = account_cpu_steps(read_step_log(path))
    report = Report(
        command="anatomy",
        inputs=(InputFile(str(path), "step-log", sha256_of(path), str(anatomy.provenance)),),
        result=cpu_steps_json(anatomy),
    )
    return deliver(
        report,
        form=form,
        output=output,
        force=force,
        text=lambda: cpu_steps_text(str(path), anatomy),
        markdown=lambda: cpu_steps_markdown(str(path), anatomy),
    )
