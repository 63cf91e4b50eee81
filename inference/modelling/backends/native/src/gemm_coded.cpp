// The loops of gemm.h for codes of 2, 3, 5 and 6 bits.
#include "gemm.h"

namespace blazr {

BLAZR_MULTIPLY(Coded<2>);
BLAZR_MULTIPLY(Coded<3>);
BLAZR_MULTIPLY(Coded<5>);
BLAZR_MULTIPLY(Coded<6>);

}  // namespace blazr
