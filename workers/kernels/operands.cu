// Fills x with numbers of a distribution: number i of a seed is the same whatever the length, the card or the launch.
//
// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): a Weyl sequence through
// a 64-bit mixing function. Compiled with -DELEMENT=float|double and -DDISTRIBUTION=one of those below.

#define UNIFORM 0  // on [-1, 1)
#define NORMAL 1   // mean 0, standard deviation 1
#define ZEROS 2
#define ONES 3
#define SPARSE 4    // uniform, but half are 0
#define INTEGERS 5  // -2, -1, 0, 1 and 2

typedef unsigned long long word_t;

__device__ double number(word_t z) {
#if DISTRIBUTION == ZEROS
    return 0.0;
#elif DISTRIBUTION == ONES
    return 1.0;
#elif DISTRIBUTION == NORMAL
    // Box and Muller's transform of two numbers of 32 bits, the first on (0, 1].
    const double radius = sqrt(-2.0 * log(((double)(z >> 32) + 1.0) * 0x1p-32));
    return radius * cospi(2.0 * (double)(z & 0xFFFFFFFFull) * 0x1p-32);
#elif DISTRIBUTION == INTEGERS
    return (double)((z >> 32) * 5 >> 32) - 2.0;
#else
    // The highest 53 bits make a double on [0, 1); the lowest one is left for a coin.
    const double uniform = (double)(z >> 11) * 0x1p-52 - 1.0;
    return DISTRIBUTION == SPARSE && (z & 1) ? 0.0 : uniform;
#endif
}

extern "C" __global__ void fill(ELEMENT* x, word_t first, word_t count, word_t seed, double scale) {
    const word_t step = (word_t)gridDim.x * blockDim.x;
    for (word_t i = (word_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        word_t z = seed * 0xD1342543DE82EF95ull + (first + i + 1) * 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        z ^= z >> 31;
        x[i] = (ELEMENT)(scale * number(z));
    }
}
