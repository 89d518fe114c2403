// The digest of a result without leaving the card: the sum of workers/measure/digest.py, bit for bit.
//
// Compiled with -DBYTES=1|2|4|8, the size of an element. `sum` must be 0 before; sums of words are the same in any order.

#if BYTES == 1
typedef unsigned char bits_t;
#elif BYTES == 2
typedef unsigned short bits_t;
#elif BYTES == 4
typedef unsigned int bits_t;
#else
typedef unsigned long long bits_t;
#endif

#define THREADS 256
#define GOLDEN 0x9E3779B97F4A7C15ull

typedef unsigned long long word_t;

// The finaliser of SplitMix64.
__device__ word_t mixed(word_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ z >> 31;
}

__device__ word_t sum_of_warp(word_t x) {
    for (int apart = 16; apart; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS) digest(const bits_t* __restrict__ d, word_t count, word_t* sum) {
    const word_t step = (word_t)gridDim.x * THREADS;
    word_t i = (word_t)blockIdx.x * THREADS + threadIdx.x, total = 0;
#pragma unroll 4
    for (; i < count; i += step) total += mixed(d[i] + (i + 1) * GOLDEN);

    __shared__ word_t of_warps[THREADS / 32];
    total = sum_of_warp(total);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = total;
    __syncthreads();
    if (threadIdx.x < 32) {
        total = sum_of_warp(threadIdx.x < THREADS / 32 ? of_warps[threadIdx.x] : 0);
        if (threadIdx.x == 0) atomicAdd(sum, total);
    }
}
