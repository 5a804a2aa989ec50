"""A modelled timeline of an NKI kernel: what its recording would look like on a NeuronCore, as low, mid and high.

Nothing here was run on a device. Recorded operations become machine instructions; the instructions are scheduled on the
engines, DMA queues and semaphores of a core (two cores for a pair); the schedule becomes a Profile of provenance
`modelled`, which every command reads like a capture.

    model = model_recording(recording)         # KernelModel: three schedules, their accounts, what is not known
    model.profile()                            # the middle one as a Profile

Module map
    work          what an instruction does, as far as its cost depends on it
    formulas      cycles of work, by formula id; the constants are trnprof/hardware/instruction_costs.toml
    operations    which instruction an operation of the language becomes, on which engine
    regions       the bytes of a storage that an operand touches, and whether two overlap
    dependencies  which earlier operations an operation must wait for: by data, and by memory that is used again
    lowering      Recording -> MachineProgram
    program       MachineProgram: columns, dependencies, DMA geometry; plain arrays, so that it crosses processes
    throttle      the tensor engine's dI/dt limit
    dma_queues    the 16 DMA engines of a core
    schedule      MachineProgram and costs -> Schedule: when everything starts and ends
    extrapolation repeated loop bodies beyond the bound: the steady state's interval
    events        Schedule -> the Profile's tables
    model         the three schedules and their accounts
    step          several kernels in a row, and the collectives between them: one decode step
"""
