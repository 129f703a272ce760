#include "tests/unit/cuda/support.h"
