// SHA-256 (FIPS 180-4) with the CPU's own instructions where it has them. Written out because a machine that only runs
// models has no library of that kind that could be counted on.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

namespace tvmstack {

class Sha256 {
 public:
  // `quick`: use the CPU's instructions, which it must have.
  explicit Sha256(bool quick = HasInstructions()) : quick_(quick) {}

  // The 32 bytes of a text's digest.
  static std::string Of(const std::string& text) {
    Sha256 state;
    state.Update(text.data(), text.size());
    return state.Digest();
  }

  void Update(const void* data, size_t size) {
    auto from = static_cast<const uint8_t*>(data);
    length_ += size;
    if (held_) {
      size_t take = size < 64 - held_ ? size : 64 - held_;
      std::memcpy(block_ + held_, from, take);
      held_ += take, from += take, size -= take;
      if (held_ < 64) return;
      Blocks(block_, 1);
      held_ = 0;
    }
    Blocks(from, size / 64);
    held_ = size % 64;
    if (held_) std::memcpy(block_, from + size / 64 * 64, held_);
  }

  // Whether this CPU has instructions for it.
  static bool HasInstructions() {
    static const bool found = Detect();
    return found;
  }

  // Ends the text; the object is used up.
  std::string Digest() {
    const uint64_t bits = length_ * 8;
    uint8_t tail[72] = {0x80};
    const size_t zeros = (119 - length_ % 64) % 64;
    for (int i = 0; i < 8; ++i) tail[1 + zeros + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
    Update(tail, zeros + 9);
    std::string out;
    for (uint32_t word : state_)
      for (int shift = 24; shift >= 0; shift -= 8) out += static_cast<char>(word >> shift);
    return out;
  }

 private:
  static const uint32_t* Constants() {
    alignas(16) static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98,
        0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786,
        0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8,
        0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13,
        0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819,
        0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a,
        0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
        0xc67178f2};
    return k;
  }

  void Blocks(const uint8_t* data, size_t count) {
    if (quick_)
      QuickBlocks(data, count);
    else
      for (size_t i = 0; i < count; ++i) PlainBlock(data + 64 * i);
  }

  static uint32_t Rotate(uint32_t x, int n) { return (x >> n) | (x << (32 - n)); }

  void PlainBlock(const uint8_t* p) {
    const uint32_t* k = Constants();
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; ++i)
      w[i] = uint32_t(p[4 * i]) << 24 | uint32_t(p[4 * i + 1]) << 16 | uint32_t(p[4 * i + 2]) << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; ++i) {
      uint32_t s0 = Rotate(w[i - 15], 7) ^ Rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
      uint32_t s1 = Rotate(w[i - 2], 17) ^ Rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    std::memcpy(v, state_, sizeof v);
    for (int i = 0; i < 64; ++i) {
      uint32_t s1 = Rotate(v[4], 6) ^ Rotate(v[4], 11) ^ Rotate(v[4], 25);
      uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
      uint32_t s0 = Rotate(v[0], 2) ^ Rotate(v[0], 13) ^ Rotate(v[0], 22);
      uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      std::memmove(v + 1, v, 7 * sizeof *v);
      v[0] = t1 + t2, v[4] += t1;
    }
    for (int i = 0; i < 8; ++i) state_[i] += v[i];
  }

#if defined(__x86_64__)
  static bool Detect() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b >> 29 & 1)) return false;
    return __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3");
  }

  __attribute__((target("sha,sse4.1,ssse3"))) void QuickBlocks(const uint8_t* data, size_t count) {
    auto k = reinterpret_cast<const __m128i*>(Constants());
    auto states = reinterpret_cast<__m128i*>(state_);
    const __m128i order = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    // The instructions want the state as ABEF and CDGH.
    const __m128i dcba = _mm_loadu_si128(states), hgfe = _mm_loadu_si128(states + 1);
    const __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
    for (; count; --count, data += 64) {
      const __m128i abef0 = abef, cdgh0 = cdgh;
      __m128i w[4];
      for (int i = 0; i < 4; ++i)
        w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), order);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        __m128i& now = w[i & 3];
        const __m128i sum = _mm_add_epi32(now, _mm_load_si128(k + i));
        cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
        abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
        const __m128i next = w[(i + 1) & 3], third = w[(i + 2) & 3], last = w[(i + 3) & 3];
        if (i < 12)
          now = _mm_sha256msg2_epu32(
              _mm_add_epi32(_mm_sha256msg1_epu32(now, next), _mm_alignr_epi8(last, third, 4)), last);
      }
      abef = _mm_add_epi32(abef, abef0), cdgh = _mm_add_epi32(cdgh, cdgh0);
    }
    const __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128(states, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128(states + 1, _mm_alignr_epi8(dchg, feba, 8));
  }
#elif defined(__aarch64__)
  static bool Detect() {
    constexpr unsigned long kSha2 = 1UL << 6;
    return getauxval(AT_HWCAP) & kSha2;
  }

  __attribute__((target("+crypto"))) void QuickBlocks(const uint8_t* data, size_t count) {
    const uint32_t* k = Constants();
    uint32x4_t abcd = vld1q_u32(state_), efgh = vld1q_u32(state_ + 4);
    for (; count; --count, data += 64) {
      const uint32x4_t abcd0 = abcd, efgh0 = efgh;
      uint32x4_t w[4];
      for (int i = 0; i < 4; ++i) w[i] = vreinterpretq_u32_u8(vrev32q_u8(vld1q_u8(data + 16 * i)));
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) {
        uint32x4_t& now = w[i & 3];
        const uint32x4_t sum = vaddq_u32(now, vld1q_u32(k + 4 * i)), before = abcd;
        abcd = vsha256hq_u32(abcd, efgh, sum);
        efgh = vsha256h2q_u32(efgh, before, sum);
        if (i < 12) now = vsha256su1q_u32(vsha256su0q_u32(now, w[(i + 1) & 3]), w[(i + 2) & 3], w[(i + 3) & 3]);
      }
      abcd = vaddq_u32(abcd, abcd0), efgh = vaddq_u32(efgh, efgh0);
    }
    vst1q_u32(state_, abcd), vst1q_u32(state_ + 4, efgh);
  }
#else
  static bool Detect() { return false; }
  void QuickBlocks(const uint8_t*, size_t) {}
#endif

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint64_t length_ = 0;
  size_t held_ = 0;
  bool quick_;
  uint8_t block_[64];
};

// Bytes as lower-case hex.
inline std::string Hex(const std::string& bytes) {
  static const char* digits = "0123456789abcdef";
  std::string out;
  for (unsigned char c : bytes) {
    out += digits[c >> 4];
    out += digits[c & 15];
  }
  return out;
}

}  // namespace tvmstack
