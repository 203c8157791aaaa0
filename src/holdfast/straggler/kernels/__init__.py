"""Where the times of GPU kernels come from.

    source         the interface of a source, and the source for machines without one
    capture        starts and stops a source with the sections that are open
    choose         which source this process uses
    cupti          kernels by CUPTI, in a window of sections for each report
    cupti_core     the library in C++ that takes CUPTI's records; native/ has its sources
    cupti_library  where libcupti may be
    cuda_events    the GPU time of sections, by CUDA events
    torch_cuda     what that needs of torch
    names          which kernels wait for other ranks

Import from the modules; this package itself imports nothing.
"""
