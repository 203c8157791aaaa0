"""Kernels that wait for other ranks are distinguished from kernels that compute, by real names of both."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.straggler.kernels.names import is_collective, is_rooted

COLLECTIVES = {
    "NCCL": [
        "ncclAllReduceRingLLKernel_sum_f32(ncclColl)",
        "_Z37ncclKernel_AllReduce_RING_LL_Sum_half12ncclWorkElem",
        "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "_Z40ncclDevKernel_AllReduce_Sum_bf16_RING_LL24ncclDevKernelArgsStorageILm4096EE",
        "ncclDevKernel_AllGather_RING_LL",
        "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL_blk_544_1_1_grid_24_1_1",
        "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>) [clone .kd]",
        "ncclDevKernelDebug_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
        "ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)",
        "ncclSymkDevKernel_AllGather_LLMC",
        "ncclDevFunc_AllReduce_Sum_f32_RING_LL128()",
        "_Z44ncclFunction_AllReduce_RING_SIMPLE_Sum_floatv",
    ],
    "RCCL": ["mscclKernel_Sum_half_Simple_false(ncclDevComm*, mscclAlgo*, mscclWork*)"],
    "MSCCL++": [
        "_ZN7mscclpp10collective15allreducePacketIiEEvPT_",
        "void executionKernel<float, mscclpp::LL16Packet>(int, float*, float*, float*)",
    ],
    "NVSHMEM": [
        "nvshmemi_signal_wait_until_on_stream_kernel(unsigned long volatile*, int, unsigned long)",
        "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)",
    ],
    "torch symmetric memory": [
        "_ZN4c10d17nvshmem_extension22exchangeSplitAndOffsetEPlii",
        "_ZN12_GLOBAL__N_134two_shot_all_reduce_kernel_inplaceIfLi16ELi2EEEvPPT_m",
        "void (anonymous namespace)::one_shot_all_reduce_kernel<c10::BFloat16, 16, 8, false>(c10::BFloat16**)",
        "void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*, unsigned long)",
        "c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**, int, int, int)",
        "wait_signal_kernel(unsigned int**, int, int, int, int, unsigned long)",
        "void lsa_put_signal_kernel<float>(void**, void**, float const*)",
    ],
    "DeepEP": [
        "_ZN7deep_ep9intranode8dispatchILi8ELi768EEEvPiPf",
        "_ZN7deep_ep12internode_ll7combineILb1ELi7168EEEvPv",
        "void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int, int, int, int**, int)",
        "void hybrid_ep::dispatch_kernel<unsigned short, 4>(hybrid_ep::dispatch_kernel_param_t<unsigned short>)",
    ],
    "expert-parallel all-to-all": [
        "void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<8, true>(int const*)",
        "moeA2ACombineKernel",
        "void a2a_dispatch_send_kernel<true, 16, 8>(unsigned long, unsigned long)",
        "EpDispatchIntraNodeKernel_bf16",
        "void pplx::dispatchKernel<true, false>(unsigned long)",
    ],
    "TransformerEngine userbuffers": [
        "_Z38userbuffers_fp16_sum_inplace_gpu_rr_rsILi2EEviPPv",
        "kuserbuffers_pushsend(int*, int*, int4*, int4*, int)",
    ],
    "custom all-reduce": [
        "_ZN4vllm26cross_device_reduce_1stageIfLi8EEEvPNS_8RankDataEPNS_6SignalEPT_ii",
        "void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)",
        "void rmsNormLamport<1, __nv_bfloat16, __nv_bfloat16, 8>(float*)",
    ],
    "Flux": ["CudaIpcBarrierAllKernel(CudaIpcBarrierAllArgs)", "barrier_all_intra_node_kernel"],
    "named after a collective": [
        "_ZN10flashinfer23trtllm_allreduce_fusion39allreduce_fusion_kernel_oneshot_lamportIiLi8EEEvT_",
        "void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)2, __nv_bfloat16, true>(int)",
        "dlslime::intranode_alltoall_kernel(char*)",
        "all_gather_matmul_kernel",
        "my_reduce_scatter",
    ],
}

ROOTED = [
    "ncclBroadcastRingLLKernel_copy_i8(ncclColl)",
    "ncclReduceRingLLKernel_sum_f32(ncclColl)",
    "ncclSendRecvKernel_copy_i8(ncclColl)",
    "ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)",
    "_Z31ncclDevKernel_Broadcast_RING_LL24ncclDevKernelArgsStorageILm4096EE",
    "ncclDevKernel_Reduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "_Z40ncclFunction_Reduce_RING_LL128_Sum_floatv",
]

COMPUTE = [
    "",
    "_Z",
    "_ZN",
    "()",
    "ampere_sgemm_128x64_tn",
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn_align8>(int)",
    "_ZN7cutlass7Kernel2IPN4vllm8RankDataEEEvT_",
    "void splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>(cublasSplitKParams<float>)",
    "void flash_fwd_splitkv_combine_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>(Flash_fwd_params)",
    "_ZN5flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsILi128EEEEv16Flash_fwd_params",
    "triton_poi_fused_add_mul_native_layer_norm_3",
    # Inductor names its kernels after the operations around them: a copy into an all-reduce's buffer is no all-reduce.
    "triton_poi_fused_all_reduce_0",
    "triton_poi_fused_all_gather_into_tensor_out_wait_tensor_12",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::NormTwoOps<float>>>(float)",
    "_ZN2at6native13reduce_kernelILi512E14ncclSymDevArgsEEvT0_",
    "void at::native::_scatter_gather_elementwise_kernel<128, 4, scatter_reduce<float>>(int)",
    "void at::native::<unnamed>::CatArrayBatchedCopy_contig<at::native::<unnamed>::OpaqueType<1>, unsigned int>(int)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::AllReduceLike, at::detail::Array<char*, 2>>(int)",
    "void cub::CUB_200302_800_NS::DeviceSegmentedReduceKernel<cub::DeviceReducePolicy<float>::Policy600>(float*)",
    "void layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float, false>(c10::BFloat16 const*)",
    "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1",
    # One GPU's own reductions, and what others call reduction, gathering, scattering, barrier or broadcast.
    "block_all_reduce_sum_f32_f32_kernel(float*, float*, int)",
    "void warp_all_reduce_kernel<float>(float*)",
    "cluster_allreduce_kernel",
    "void radixFindKthValues<float, unsigned int>(float const*)",
    "reduce_1stage_kernel",
    "void index_put_broadcast_kernel<int>(int*)",
    "moe_combine_kernel",
    "void moe_dispatch_mask<int>(int*)",
    # Beside collectives, yet with no other rank to wait for.
    "void (anonymous namespace)::oneRankReduce<FuncPreMulSum<float>>(void*, void*, unsigned long)",
    "ncclDevFunc_OneRankReduce_PreMulSum_f32()",
    "_ZN7deep_ep6layout19get_dispatch_layoutILi256EEEvPl",
    "void hybrid_ep::scan<512>(int*)",
    "void tensorrt_llm::kernels::ar_fusion::lamport_initialize_kernel(float*, int)",
    "void c10d::checkForNaN<float>(float*, unsigned long)",
    # A user's own, with a word of NCCL in the name, the arguments or the parameters.
    "my_nccl_buffer_pack(float*, int)",
    "_ZN4mine5scaleI18ncclDevRedOpHelperIiEEEvT_14ncclDevRedOp_t",
    "ncclDevRedOpToString",
    "void pack<deep_ep::intranode::Config>(ncclDevKernel_AllReduce*)",
    # Names in other alphabets and shapes.
    "_ZN99999999999999999999foo",
    "<lambda>",
    "Memcpy PtoP (Device -> Device)",
    "ядро",
]


ALL = [name for names in COLLECTIVES.values() for name in names]
SCATTERS = [
    "ncclReduceScatterRingLLKernel_sum_f32(ncclColl)",
    "ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "ncclDevFunc_ReduceScatter_Sum_f32_RING_LL()",
]


def test_collectives_and_compute() -> None:
    assert [name for name in (*ALL, *ROOTED) if not is_collective(name)] == []
    assert [name for name in COMPUTE if is_collective(name)] == []


def test_collectives_with_a_root_or_a_direction() -> None:
    assert [name for name in ROOTED if not is_rooted(name)] == []
    assert [name for name in (*SCATTERS, *ALL) if "SendRecv" not in name and is_rooted(name)] == []


@pytest.mark.parametrize("suffix", ["", "_blk_256_1_1_grid_24_1_1", "(int)", "<float>(int)", " [clone .kd]"])
def test_what_follows_the_name_changes_nothing(suffix: str) -> None:
    assert is_collective(f"ncclDevKernel_AllGather_RING_LL{suffix}")
    assert not is_collective(f"ampere_sgemm_128x64_tn{suffix}")


@given(st.text() | st.from_regex(r"_Z[LN]?[0-9]{0,4}[a-zA-Z_:<>( ]{0,30}"))
def test_any_text_gets_an_answer(name: str) -> None:
    """And arguments never count, whatever they are."""
    assert is_collective(name) in (True, False)
    assert not is_collective(f"scale<{name}>")
