"""`trnprof engine serve`: the engine behind OpenAI's protocol."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from trnprof.cli.engine_options import (
    CONTEXTS,
    DECODE_ROWS,
    PREFILL_SIZES,
    ContextsOption,
    DecodeRowsOption,
    DeviceOption,
    DraftOption,
    EvictionOption,
    HostPagesOption,
    HostSnapshotsOption,
    ModelOption,
    PagesOption,
    PrefillSizesOption,
    PrefixCacheOption,
    SeedOption,
    SnapshotsOption,
    ThreadsOption,
    engine_config,
)
from trnprof.cli.options import DebugOption

EXAMPLES = (
    "trnprof engine serve --port 8117",
    "trnprof engine serve --model tiny-gdn-moe --draft 2 --log run/",
    "TRNPROF_ENGINE_API_KEY=secret trnprof engine serve --host 0.0.0.0",
)


def serve(
    model: ModelOption = "tiny-gdn-moe",
    host: Annotated[
        str, typer.Option(help="Address to bind; beyond loopback it needs TRNPROF_ENGINE_API_KEY.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to bind.")] = 8117,
    draft: DraftOption = 0,
    pages: PagesOption = 4096,
    snapshots: SnapshotsOption = 64,
    host_pages: HostPagesOption = 0,
    host_snapshots: HostSnapshotsOption = 0,
    prefill_sizes: PrefillSizesOption = PREFILL_SIZES,
    decode_rows: DecodeRowsOption = DECODE_ROWS,
    contexts: ContextsOption = CONTEXTS,
    eviction: EvictionOption = "stale-interior",
    prefix_cache: PrefixCacheOption = True,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = 0,
    seed: SeedOption = 0,
    log: Annotated[
        Path | None, typer.Option(help="Write the step log into this folder at the end.", show_default=False)
    ] = None,
    debug: DebugOption = False,
) -> int:
    """Serve completions and chat until interrupted; requests that run get 30 s to finish."""
    from trnprof.engine.build import open_engine, require_extra
    from trnprof.render.text import printable

    config = engine_config(
        draft=draft,
        pages=pages,
        snapshots=snapshots,
        host_pages=host_pages,
        host_snapshots=host_snapshots,
        prefill_sizes=prefill_sizes,
        decode_rows=decode_rows,
        contexts=contexts,
        eviction=eviction,
        prefix_cache=prefix_cache,
        device=device,
        seed=seed,
    )
    require_extra("torch", "safetensors", "starlette", "uvicorn")
    from trnprof.engine.server import check_exposure
    from trnprof.engine.server import serve as serve_engine

    api_key = os.environ.get("TRNPROF_ENGINE_API_KEY") or None
    check_exposure(host, api_key)
    served = open_engine(model, config, keep_log=log is not None, threads=threads or None)
    if not prefix_cache:
        print("trnprof: the prefix cache is off: every prompt is computed whole", file=sys.stderr)
    print(f"trnprof: serving {printable(served.name)} on http://{printable(host)}:{port}", file=sys.stderr)
    serve_engine(served, host=host, port=port, api_key=api_key)
    if log is not None and served.engine.log is not None:
        served.engine.log.write(log)
        print(f"trnprof: step log written; look at it with: trnprof anatomy {printable(log, 400)}", file=sys.stderr)
    return 0
