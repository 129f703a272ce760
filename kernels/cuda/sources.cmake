# Kernel sources: compiled by nvcc and clang for GPUs, by the host compiler for the emulator.
set(QUARTET_CUDA_SOURCES
  ceilings.cu
  dsa.cu
  embedding.cu
  exl3.cu
  exl3_gemm.cu
  gemm.cu
  kda.cu
  linear_exact.cu
  linear_rows.cu
  mhc.cu
  mlp.cu
  moe.cu
  mtp.cu
  norm.cu
  sampler.cu
  self_test.cu)
