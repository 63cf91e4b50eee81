// The loops of gemm.h for weights as they are, and for codes of 4 and 8 bits.
#include "gemm.h"

namespace blazr {

BLAZR_MULTIPLY(Coded<4>);
BLAZR_MULTIPLY(Coded<8>);
BLAZR_MULTIPLY(Float8<Half>);
BLAZR_MULTIPLY(Float8<Single>);
BLAZR_MULTIPLY(Half);
BLAZR_MULTIPLY(Single);

}  // namespace blazr
