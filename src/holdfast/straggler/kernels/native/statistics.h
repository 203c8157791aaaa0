// The figures of one kernel in the window between two reports.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "histogram.h"

namespace holdfast {

// What each record changes lies in one line of the processor's cache.
class alignas(64) Statistics {
  public:
    std::uint64_t count() const { return count_; }
    double least() const { return static_cast<double>(least_); }
    double most() const { return static_cast<double>(most_); }
    double mean() const { return static_cast<double>(total_) / static_cast<double>(count_); }

    bool add(std::uint64_t nanoseconds, OctavePool &pool) {
        // Only a later duration can be in the octave of the last one.
        if (!histogram_.add_to_recent(nanoseconds, pool)) {
            if (!histogram_.add(nanoseconds, pool)) return false;
            if (count_ == 0) first_ = nanoseconds;
        }
        // Around the first duration: squares of whole durations would cancel each other's digits.
        const double off = static_cast<double>(static_cast<std::int64_t>(nanoseconds - first_));
        squares_ += off * off;
        total_ += nanoseconds;
        // Seldom true, so a branch costs less than to write both each time.
        if (__builtin_expect(nanoseconds < least_, 0)) least_ = nanoseconds;
        if (__builtin_expect(nanoseconds > most_, 0)) most_ = nanoseconds;
        ++count_;
        return true;
    }

    double median(const OctavePool &pool) const {
        return std::clamp(histogram_.median(count_, pool), least(), most());
    }

    // Unbiased; NaN for a single duration.
    double deviation() const {
        if (count_ < 2) return std::numeric_limits<double>::quiet_NaN();
        const double count = static_cast<double>(count_);
        const double off = static_cast<double>(static_cast<std::int64_t>(total_ - count_ * first_));  // of all
        return std::sqrt(std::max(0.0, (squares_ - off * off / count) / (count - 1)));
    }

  private:
    std::uint64_t count_ = 0, total_ = 0, first_ = 0, most_ = 0;
    std::uint64_t least_ = std::numeric_limits<std::uint64_t>::max();
    double squares_ = 0;
    Histogram histogram_;
};

}  // namespace holdfast
