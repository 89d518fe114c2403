// Fills x with numbers uniform on [-1, 1): number i of a seed is the same whatever the length, the card or the launch.
//
// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): a Weyl sequence through
// a 64-bit mixing function; its highest 53 bits make a double on [0, 1).

typedef unsigned long long word_t;

extern "C" __global__ void fill_uniform(ELEMENT* x, word_t count, word_t seed) {
    const word_t step = (word_t)gridDim.x * blockDim.x;
    for (word_t i = (word_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        word_t z = seed * 0xD1342543DE82EF95ull + (i + 1) * 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        z ^= z >> 31;
        x[i] = (ELEMENT)((double)(z >> 11) * 0x1p-52 - 1.0);
    }
}
