"""Which GPU kernels wait for other ranks, told by their names: they are never scored as compute.

A fast rank waits for a slow one inside such a kernel, so scored as compute it would turn the verdict around. Where a
name leaves a doubt, it is therefore taken for a collective: a kernel too few is scored, and no rank is blamed for it.

What always holds: only the kernel's own qualified name counts, never its template arguments, parameters or launch
shape; mangled and demangled names of one kernel give the same answer; nothing raises.
Does not cover: compute fused with communication under a name that tells of neither; copies between GPUs, which are no
kernels; kernels that a user named after nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache

_REMEMBERED = 65536
"""Names whose answer is kept: a training step has hundreds, and a bounded table cannot grow with dynamic shapes."""


_COLLECTIVES = (
    # NCCL before 2.8: ncclAllReduceRingLLKernel_sum_f32.
    r"nccl(?:All|Reduce|Broadcast|SendRecv)\w*Kernel(?:_\w+)?",
    # NCCL 2.8 to 2.18, src/collectives/device: NCCL_KERN_NAME.
    r"ncclKernel_\w+",
    # NCCL from 2.19 (ncclDevKernel), 2.27 (ncclSymDevKernel), 2.28 (ncclSymkDevKernel), src/device/**/generate.py. RCCL
    # takes these names, and adds ncclDevKernelDebug_Generic.
    r"nccl(?:DevKernel|SymDevKernel|SymkDevKernel)(?:Debug)?_\w+",
    # NCCL's device functions, which some builds show in place of the kernel; OneRankReduce waits for no other rank.
    r"nccl(?:DevFunc|Function)_(?!OneRankReduce)\w+",
    # RCCL with MSCCL, src/include/msccl: MSCCL_KERNEL_ENTRY_NAME.
    r"mscclKernel_\w+",
    # MSCCL++, src/ext/collectives: mscclpp::collective::allreducePacket; src/core/include/execution_kernel.hpp.
    r"mscclpp::(?:\w+::)*\w+|executionKernel",
    # NVSHMEM, src/host/stream and src/host/coll: nvshmemi_signal_wait_until_on_stream_kernel,
    # barrier_on_stream_kernel_threadgroup; rocSHMEM and Intel SHMEM likewise.
    r"(?:nv|roc|i)shmemi?x?_\w+|\w+_on_stream_kernel\w*",
    # PyTorch, torch/csrc/distributed/c10d/symm_mem: CUDASymmetricMemory.cu, nvshmem_extension.cu.
    r"c10d::(?:symmetric_memory|nvshmem_extension|intra_node_comm|cuda::detail)::\w+",
    r"(?:barrier|(?:lsa_)?(?:put|get|wait)_signal)_kernel",
    # PyTorch, CUDASymmetricMemoryOps.cu: two_shot_all_reduce_kernel_inplace; and Triton kernels of that name.
    r"_?(?:one_shot|two_shot|multimem)_\w*(?:reduce|gather|scatter|broadcast)\w*",
    # DeepEP, csrc/kernels: intranode, internode, internode_ll (dispatch, combine, notify); layout is local.
    r"(?:deep_ep|hybrid_ep)::(?!layout::|scan|permute|unpermute)(?:\w+::)*\w+",
    # pplx-kernels, pplx-garden a2a-kernels, MORI src/ops/dispatch_combine, TensorRT-LLM moeAlltoAllKernels.cu.
    r"(?:pplx::(?:\w+::)*|mori::(?:\w+::)*Ep)\w+|Ep(?:Dispatch|Combine)\w+",
    r"a2a_(?:dispatch|combine)_(?:send|recv)_kernel|moeA2A(?:Dispatch|Combine)Kernel",
    # TransformerEngine, common/comm_gemm_overlap/userbuffers/userbuffers.cu.
    r"k?userbuffers_\w+",
    # vLLM and SGLang csrc/custom_all_reduce.cuh, aiter, QuickReduce, TensorRT-LLM mnnvlTwoShotAllreduceKernels.cu.
    r"\w*cross_device_\w+|quickreduce::\w+|allreduce_prototype_\w+|rmsNormLamport\w*",
    # Flux and Triton-distributed: a barrier of all ranks.
    r"\w*IpcBarrierAll\w*|\w*barrier_all\w*",
    # Named after a collective: TensorRT-LLM and FlashInfer (allreduce_fusion_kernel_oneshot_lamport,
    # twoShotAllReduceKernel), PyTorch's intra_node_comm.cu, users' own. Without what a compiler named after the
    # operations around a collective, and reductions inside one GPU.
    r"(?!triton_)(?!\w*(?:warp|wave|block|thread|lane|tile|cta|cluster|grid|simd|local))"
    r"\w*(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|all2all)\w*",
)
"""Qualified names, `a::b::kernel`, of kernels that wait, and where each is given; matched from any of their `::` on."""

_ROOTED = re.compile(
    r"(?:\w+::)*nccl(?:(?:DevKernel|Kernel|DevFunc|Function)(?:Debug)?_)?"
    r"(?:Broadcast|Reduce(?!_?Scatter)|SendRecv|Send|Recv|Scatter|Gather)(?![a-z])\w*"
)
_COMPUTE = re.compile(r"(?:at::native|at::cuda|cub|thrust|cutlass|cute)::")
"""Libraries that have no collectives, whatever their kernels are called."""
_WAITS = re.compile(rf"(?:\w+::)*?(?:{'|'.join(_COLLECTIVES)})", re.IGNORECASE)
_UNNAMED = re.compile(r"\(anonymous namespace\)::|<unnamed>::|\{anonymous\}::|\(unnamed\)::")
_DEMANGLED = re.compile(r"(?:[\w:]+ )*([A-Za-z_][\w:]*)")
_NESTED = re.compile(r"_Z(L|N[rVK]*L?)?(?=[1-9])")
_LENGTH = re.compile(r"L?([1-9][0-9]{0,4})")


@lru_cache(maxsize=_REMEMBERED)
def is_collective(name: str) -> bool:
    """Whether a kernel waits for other ranks. `name` is mangled or not, and may end in parameters or a launch shape.

    About 0.1 µs for a name that was asked for before.
    """
    qualified = _qualified(name)
    return not _COMPUTE.match(qualified) and _WAITS.fullmatch(qualified) is not None


@lru_cache(maxsize=_REMEMBERED)
def is_rooted(name: str) -> bool:
    """Whether a collective kernel has a root or a direction: broadcast, reduce, scatter, gather, send and receive.

    A rank that sends and continues waits least in it without being late, so it shows nothing about which arrives last.
    Does not cover: libraries other than NCCL and RCCL; NCCL's `Generic` kernels, which may run anything. NCCL's
    all-to-all is made of sends and receives, and counts as those.
    """
    return _ROOTED.fullmatch(_qualified(name)) is not None


def _qualified(name: str) -> str:
    """`ns::kernel` of a mangled or demangled name; empty where there is none to be seen.

    Source of the mangling: Itanium C++ ABI, 5.1. Only what stands before template arguments is read.
    """
    mangled = _NESTED.match(name)
    if mangled is None:
        found = _DEMANGLED.match(_UNNAMED.sub("", name.strip()))
        return found[1] if found else ""
    nested = (mangled[1] or "").startswith("N")
    parts: list[str] = []
    at = mangled.end()
    while length := _LENGTH.match(name, at):
        at = length.end() + int(length[1])
        parts.append(name[length.end() : at])
        if not nested:  # what follows are its arguments
            break
    return "::".join(part for part in parts if not part.startswith(("_GLOBAL__N_", "_INTERNAL_")))
