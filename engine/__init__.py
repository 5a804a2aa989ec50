"""The bundled reference engine: a hybrid model served for real, small enough to read in an evening.

Read in this order: `config` (what a model is), `kernels` (the operations, one contract each), `model` (layers made of
them), `cache` and `scheduler` (torch-free: pages, state slots, prefix tree, plans), `runner` and `loop` (plans become
steps), `server` (OpenAI's protocol). It imports nothing of trnprof.analyzers; torch and the server's packages are the
extra `trnprof[engine]` and are imported only where they are needed. docs/engine.md has the map.
"""
