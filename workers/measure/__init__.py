"""How a GEMM is measured: operands, timing, verification, power. Nothing here knows a particular device."""
