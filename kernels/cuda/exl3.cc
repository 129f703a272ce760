#include "kernels/cuda/exl3.h"
