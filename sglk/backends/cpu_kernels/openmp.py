"""OpenMP's threads: it keeps some for each thread that ever called a kernel, to help it."""

import ctypes

SOFT_PAUSE = 1
"""`omp_pause_soft`: threads end, settings stay."""


def end_helpers(library: ctypes.CDLL) -> None:
    """End the threads that help the calling one; its next kernel starts them again.

    Where all helpers of a process are more than its processors, OpenMP lets each sleep as soon as it has nothing to do:
    a step of an engine's thread, which wakes them at every kernel, then takes half as long again. Torch's ops and the
    kernels share a runtime, so this ends those of torch too.
    """
    pause = getattr(library, "omp_pause_resource_all", None)
    if pause is not None:
        pause(ctypes.c_int(SOFT_PAUSE))
