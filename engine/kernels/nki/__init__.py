"""Kernels for NeuronCores in NKI, and the functions on torch tensors that stand for them in the table of kernels.

A file without torch in it is an NKI kernel file, as `trnprof nki run`, `nki model`, `dma-predict` and the vendor's compiler
take it: `rms_norm`, `projection`, `attention`, `sampling`, `delta_rule`, `experts`, `routing`, `embedding`. It is never imported;
`bridge` runs it, and trnprof's modelled step. `embedding` stands for a lookup that has no contract.
The modules named `*_calls` are the other half: each registers the contract's functions, which lay tensors out as a kernel
wants them and call it. `contracts.BACKENDS` lists them, so that a tool that loads a kernel file imports none of them.
"""
