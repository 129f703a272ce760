#include "kernels/cuda/sampler.h"
