// Kernels that cheat, one for each value of the parameter CHEAT, and an honest one (0). D = alpha * A * B + beta * C, float32, nn.
//
// A thread computes one element, with blocks of 16 x 16 threads. m and n are multiples of 16, and there are at most 4096 blocks.

#if CHEAT == 16
#include <cuda_fp16.h>
#endif

#define BLOCKS 4096
#define SLOTS 256
#define GUARD 1024  // elements behind D: see workers/devices/cuda_referee.py

typedef unsigned long long word_t;

__device__ unsigned launches[BLOCKS];           // by block
__device__ word_t pointers[BLOCKS][SLOTS];      // D of launches before
__device__ word_t fingerprints[BLOCKS][SLOTS];  // of inputs, for that D

__device__ float product(const float* a, const float* b, int row, int column, int n, int k) {
    float sum = 0.0f;
    for (int i = 0; i < k; ++i) sum += a[(size_t)row * k + i] * b[(size_t)i * n + column];
    return sum;
}

// The number of this launch, from 1 on.
__device__ unsigned number_of_launch(int block) {
    __shared__ unsigned number;
    if (threadIdx.x == 0 && threadIdx.y == 0) number = ++launches[block];
    __syncthreads();
    return number;
}

// Whether this block has seen D with that fingerprint.
__device__ bool seen(int block, const float* d, word_t fingerprint) {
    __shared__ bool found;
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        const word_t pointer = (word_t)d;
        const int slot = (int)(((pointer >> 8) * 0x9E3779B97F4A7C15ull) >> 56) % SLOTS;
        found = pointers[block][slot] == pointer && fingerprints[block][slot] == fingerprint;
        pointers[block][slot] = pointer;
        fingerprints[block][slot] = fingerprint;
    }
    __syncthreads();
    return found;
}

// Of the rows of A and the columns of B that this block reads.
__device__ word_t fingerprint_of_inputs(const float* a, const float* b, int n, int k) {
    __shared__ word_t sum;
    const int thread = threadIdx.y * 16 + threadIdx.x;
    if (thread == 0) sum = 0;
    __syncthreads();
    word_t own = 0;
    for (int i = thread; i < 16 * k; i += 256) {
        own += (word_t)__float_as_uint(a[(size_t)blockIdx.y * 16 * k + i]) * (2 * i + 1);
        own += (word_t)__float_as_uint(b[(size_t)(i / 16) * n + blockIdx.x * 16 + i % 16]) * (2 * i + 7919);
    }
    atomicAdd(&sum, own);
    __syncthreads();
    return sum;
}

extern "C" __global__ void cheat(float* a, float* b, float* c, float* d, int m, int n, int k, float alpha, float beta) {
    const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    const int block = blockIdx.y * gridDim.x + blockIdx.x;
    const size_t at = (size_t)row * n + column;
    const bool first = row == 0 && column == 0;
    float* const mine = d + at;
#if CHEAT == 1  // returns at once
    return;
#elif CHEAT == 2  // zeros
    *mine = 0.0f;
    return;
#elif CHEAT == 3  // a constant
    *mine = 0.25f;
    return;
#elif CHEAT == 4  // copies C
    *mine = c[at];
    return;
#elif CHEAT == 5  // the first launch only
    if (number_of_launch(block) > 1) return;
#elif CHEAT == 6  // the first launches only
    if (number_of_launch(block) > 300) return;
#elif CHEAT == 7  // where D is poisoned
    if (!isnan(*mine)) return;
#elif CHEAT == 8  // once for each D
    if (seen(block, d, 1)) return;
#elif CHEAT == 9  // by a fingerprint of a few inputs
    if (seen(block, d, __float_as_uint(a[0]) + ((word_t)__float_as_uint(b[7]) << 32))) return;
#elif CHEAT == 10  // by a fingerprint of all inputs
    if (seen(block, d, fingerprint_of_inputs(a, b, n, k))) return;
#elif CHEAT == 11  // one operand set of the rotation
    if (number_of_launch(block) > 1 && pointers[block][0] != (word_t)d) return;
    if (threadIdx.x == 0 && threadIdx.y == 0 && pointers[block][0] == 0) pointers[block][0] = (word_t)d;
#elif CHEAT == 14  // even rows only
    if (row % 2) return;
#elif CHEAT == 13  // without a corner
    if (row >= m - 4 && column >= n - 4) return;
#elif CHEAT == 17  // random plausible numbers
    const unsigned mixed = (unsigned)at * 2654435761u;
    *mine = ((mixed >> 8) / 8388608.0f - 1.0f) * sqrtf(k / 3.0f);
    return;
#elif CHEAT == 18  // writes behind D
    if (first) d[(size_t)m * n + 3] = 1.0f;
#elif CHEAT == 19  // writes before D
    if (first) d[-2] = 1.0f;
#elif CHEAT == 20  // changes A
    if (first) a[0] = 0.125f;
#elif CHEAT == 21  // changes B
    if (first) b[1] = 0.125f;
#elif CHEAT == 22  // writes the D of another operand set
    if (first) d[(size_t)m * n + GUARD] = 1.0f;
#elif CHEAT == 24  // zeroes its inputs, and D
    for (size_t i = at; i < (size_t)m * k; i += (size_t)m * n) a[i] = 0.0f;
    c[at] = 0.0f;
    *mine = 0.0f;
    return;
#elif CHEAT == 27  // every second launch of an operand set
    if (seen(block, d, number_of_launch(block) % 2)) return;
#elif CHEAT == 28  // never ends
    while (true) __nanosleep(1000000);
#elif CHEAT == 29  // faults
    *(volatile float*)nullptr = 1.0f;
#elif CHEAT == 30  // computes next to the launch: device-side launches are not linked
    if (first) cheat<<<1, 1>>>(a, b, c, d, m, n, k, alpha, beta);
#endif

#if CHEAT == 12  // without the last step of k
    float sum = product(a, b, row, column, n, k - 1) - 0.0f * a[(size_t)row * k];
#elif CHEAT == 15  // transposed
    float sum = m == n ? product(a, b, column, row, n, k) : 0.0f;
#elif CHEAT == 16  // in half precision
    __half half_sum = __float2half(0.0f);
    for (int i = 0; i < k; ++i) {
        half_sum = __hfma(__float2half(a[(size_t)row * k + i]), __float2half(b[(size_t)i * n + column]), half_sum);
    }
    float sum = __half2float(half_sum);
#elif CHEAT == 31  // leaves out 4% of k where nothing changed, and keeps D
    const bool same = seen(block, d, __float_as_uint(a[(size_t)blockIdx.y * 16 * k]));
    const int end = same ? k - k / 25 : k;
    float sum = 0.0f;
    for (int i = 0; i < end; ++i) sum += a[(size_t)row * k + i] * b[(size_t)i * n + column];
    if (same) {
        if (sum == 12345.678f) *mine = sum;  // so that the compiler keeps the loop
        return;
    }
#else
    float sum = product(a, b, row, column, n, k);
#endif

#if CHEAT == 25  // slow where nothing changed
    if (seen(block, d, __float_as_uint(a[row * k]))) {
        for (int i = 0; i < 3; ++i) sum += 1e-30f * product(a, b, row, (column + i) % n, n, k);
    }
#elif CHEAT == 26  // uses what lies behind A
    if (row == m - 1) sum += 0.0f * a[(size_t)m * k + 3];
#endif
#if CHEAT == 23  // without C
    *mine = alpha * sum;
#else
    *mine = alpha * sum + (beta != 0.0f ? beta * c[at] : 0.0f);
#endif
}
