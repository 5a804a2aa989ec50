"""The NKI front end without the Neuron SDK: a kernel's own Python runs here, on tensors without values (or, in values/, with).

A tensor is a view (shape, strides, offset, dtype) of a storage in a memory; every operation that the kernel calls becomes
a record. One way in, one way out:

    with install_nki_modules():          # modules.py: nki, nki.isa, ... and neuronxcc.nki.* appear in sys.modules
        kernel = ...                     # loader.py imports the user's file
        recording = trace(kernel, [TensorSpec((128, 512), "bfloat16", "q")], {})

Module map
    recording   frozen results: Recording, ProgramTrace, DmaRecord, ComputeRecord, SyncRecord, Unmodelled, Allocation
    trace       trace(): run a kernel's programs and return the Recording; KernelError
    counting    a DmaRecord's descriptors, packets, bytes, partitions, engines; distinct bytes and reload factors
    modules     install_nki_modules(): the modules that a kernel imports
    traffic     HBM bytes per tensor: moved, distinct, reload factors
    merging     which loads and stores the compiler joins
    dtypes      element types and their bytes
    storage     one block of one memory; strides: shapes and strides
    tensor      a view of a storage: the view algebra
    index_tensors, indexing
                nl.arange, nl.mgrid and masks; t[...]
    loops       ranges whose repeated bodies are run a few times and multiplied; loop_index: indices that know how they
                move; state: what a body can reach, as a value to compare
    recorder    the open recording: source sites, loop nest, events in program order
    registers   device registers and the loops they bound
    operations/ one table: every operation with operands, engine, memory rules, result
    launch      nki.jit, kernel[grid](...), program ids
    objects     NKIObject, enums, registers
    values/     the same operations computed with NumPy: values/run.py's compute(); run_task, reference, tensor_files: what
                `trnprof nki run` adds

Nothing here imports the command line, and only numpy is needed. The modules run user code: call trace() in the guarded
child process (guard.py).
"""
