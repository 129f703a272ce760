#include "kernels/cuda/device/launch.cuh"
