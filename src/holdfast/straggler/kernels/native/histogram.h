// Histograms of durations in nanoseconds: 64 buckets to each doubling, in octaves that exist once they are needed.
//
// What always holds: a bucket is at most 1/64 of its lower bound wide, and one nanosecond wide below 128 ns, so a
// quantile is off by less than 1.6 %. Bounds are the same for all kernels and ranks, so histograms can be added up.
// A kernel whose times lie within a factor of two to four takes two or three octaves, 256 bytes each.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

namespace holdfast {

constexpr unsigned BUCKETS = 64;
constexpr unsigned OCTAVES = 59;
constexpr std::size_t MOST_OCTAVES = 32768;  // of all kernels together: 8 MiB

using Octave = std::array<std::uint32_t, BUCKETS>;

struct Place {
    unsigned octave, bucket;
};

inline Place place(std::uint64_t nanoseconds) {
    if (nanoseconds < BUCKETS) return {0, static_cast<unsigned>(nanoseconds)};
    const unsigned shift = 57 - static_cast<unsigned>(__builtin_clzll(nanoseconds));
    return {shift + 1, static_cast<unsigned>(nanoseconds >> shift) & (BUCKETS - 1)};
}

inline double lower_bound(Place at) {
    if (at.octave == 0) return at.bucket;
    return static_cast<double>(static_cast<std::uint64_t>(BUCKETS + at.bucket) << (at.octave - 1));
}

// How far the highest duration of a bucket is above its lowest.
inline double extent(Place at) {
    return at.octave == 0 ? 0.0 : static_cast<double>((std::uint64_t{1} << (at.octave - 1)) - 1);
}

// All octaves of all kernels, in one growing block. Numbers stay valid when it grows; number 0 is none.
class OctavePool {
  public:
    OctavePool() : octaves_(1) {}
    Octave &operator[](std::uint16_t number) { return octaves_[number]; }
    const Octave &operator[](std::uint16_t number) const { return octaves_[number]; }

    std::uint16_t add() {  // 0: there are as many as there may be
        if (octaves_.size() >= MOST_OCTAVES) return 0;
        octaves_.emplace_back();
        return static_cast<std::uint16_t>(octaves_.size() - 1);
    }
    void clear() { octaves_.resize(1); }

  private:
    std::vector<Octave> octaves_;
};

class Histogram {
  public:
    // Counts a duration of the octave that the last one was in. False, and nothing is counted, if it is in another: a
    // kernel takes about as long as the last time, so most often no octave has to be looked up.
    bool add_to_recent(std::uint64_t nanoseconds, OctavePool &pool) {
        const std::uint64_t bucket = (nanoseconds >> recent_shift_) - BUCKETS;
        if (bucket >= BUCKETS) return false;
        ++pool[recent_number_][bucket];
        return true;
    }

    // False when the octave that it takes cannot be had.
    bool add(std::uint64_t nanoseconds, OctavePool &pool) {
        const Place at = place(nanoseconds);
        std::uint16_t &number = octaves_[at.octave];
        if (number == 0 && (number = pool.add()) == 0) return false;
        ++pool[number][at.bucket];
        if (at.octave == 0) return true;  // its buckets begin at 0, those of the others at BUCKETS once shifted
        recent_shift_ = static_cast<std::uint16_t>(at.octave - 1);
        recent_number_ = number;
        return true;
    }

    // The lower median of `count` durations, by rank between the bounds of its bucket.
    double median(std::uint64_t count, const OctavePool &pool) const {
        const std::uint64_t rank = (count - 1) / 2;
        std::uint64_t before = 0;
        for (unsigned octave = 0; octave < OCTAVES; ++octave) {
            if (octaves_[octave] == 0) continue;
            const Octave &buckets = pool[octaves_[octave]];
            for (unsigned bucket = 0; bucket < BUCKETS; ++bucket) {
                const std::uint64_t here = buckets[bucket];
                if (rank < before + here) {
                    const double share = (static_cast<double>(rank - before) + 0.5) / static_cast<double>(here);
                    return lower_bound({octave, bucket}) + extent({octave, bucket}) * share;
                }
                before += here;
            }
        }
        return 0.0;
    }

  private:
    static constexpr std::uint16_t NO_OCTAVE = 63;  // no duration shifted by so much is as high as BUCKETS
    // Beside what each record changes, unlike the long list.
    std::uint16_t recent_shift_ = NO_OCTAVE, recent_number_ = 0;
    std::array<std::uint16_t, OCTAVES> octaves_{};
};

}  // namespace holdfast
