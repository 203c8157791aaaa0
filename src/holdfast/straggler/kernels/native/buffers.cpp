#include "buffers.h"

#include <cstdlib>

namespace holdfast {
namespace {
constexpr std::size_t ALIGNMENT = 64;
}

std::uint8_t *Buffers::hand_out(std::size_t *size) {
    const std::lock_guard<std::mutex> guard(lock_);
    std::uint8_t *buffer = nullptr;
    *size = 0;
    if (!kept_.empty()) {
        buffer = kept_.back();
        kept_.pop_back();
        *size = LARGE_BYTES;
    } else {
        const std::size_t first = large_ < MOST_LARGE ? LARGE_BYTES : SMALL_BYTES;
        for (const std::size_t bytes : {first, SMALL_BYTES}) {
            buffer = static_cast<std::uint8_t *>(std::aligned_alloc(ALIGNMENT, bytes));
            if (buffer == nullptr) continue;
            *size = bytes;
            break;
        }
    }
    if (buffer == nullptr) return nullptr;
    large_ += *size == LARGE_BYTES;
    out_[buffer] = {*size, left_};
    return buffer;
}

bool Buffers::is_out(std::uint8_t *buffer) {
    const std::lock_guard<std::mutex> guard(lock_);
    return out_.count(buffer) != 0;
}

void Buffers::come_back(std::uint8_t *buffer) {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = out_.find(buffer);
    if (found == out_.end()) return;
    const std::size_t size = found->second.size;
    out_.erase(found);
    large_ -= size == LARGE_BYTES;
    if (size == LARGE_BYTES && kept_.size() < MOST_KEPT)
        kept_.push_back(buffer);
    else
        std::free(buffer);
}

void Buffers::cupti_left() {
    const std::lock_guard<std::mutex> guard(lock_);
    ++left_;
    for (auto one = out_.begin(); one != out_.end();) {
        if (one->second.left + 1 >= left_) {
            ++one;
            continue;
        }
        large_ -= one->second.size == LARGE_BYTES;
        std::free(one->first);
        one = out_.erase(one);
    }
}

std::size_t Buffers::out() {
    const std::lock_guard<std::mutex> guard(lock_);
    return out_.size();
}

}  // namespace holdfast
