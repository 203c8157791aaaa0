// The buffers that CUPTI fills with records: which are out, and whose a buffer is that comes back.
//
// What always holds: a request is answered with a buffer (CUPTI before CUDA 12.9 may crash where it is refused one); when
// many are out, with a small one. Only what was handed out here is ever freed, because after another tool took
// CUPTI's callbacks over, and back, buffers of the one come to the other.
// Does not cover: a bound on how many CUPTI asks for; beyond MOST_LARGE each costs SMALL_BYTES.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace holdfast {

// About 2,500 kernels. CUPTI keeps a buffer as long as one kernel in it still runs, so larger ones would come late.
constexpr std::size_t LARGE_BYTES = 512 << 10;
constexpr std::size_t SMALL_BYTES = 16 << 10;
constexpr std::size_t MOST_LARGE = 128;
constexpr std::size_t MOST_KEPT = 4;

class Buffers {
  public:
    // Null only when there is no memory at all.
    std::uint8_t *hand_out(std::size_t *size);
    // Whether it was handed out here and is out.
    bool is_out(std::uint8_t *buffer);
    void come_back(std::uint8_t *buffer);
    // CUPTI is gone from the process. What is out stays valid until it was gone once more: freed memory that somebody
    // still wrote to would be the training's.
    void cupti_left();
    std::size_t out();

  private:
    struct Out {
        std::size_t size;
        std::uint32_t left;  // how often CUPTI left before it was handed out
    };
    std::mutex lock_;
    std::unordered_map<std::uint8_t *, Out> out_;
    std::vector<std::uint8_t *> kept_;
    std::size_t large_ = 0;
    std::uint32_t left_ = 0;
};

}  // namespace holdfast
