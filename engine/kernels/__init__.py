"""Operations that an optimiser may replace: one contract each, an implementation for each backend.

A kernel is a pure function of its arguments except for the state and caches that its contract marks as written; those are
passed in, never held. Shapes are static: a step's shape is in the closed list of `trnprof.engine.shapes`.
"""
