// The kernels of one window: for each name and launch shape, how often and how long it ran.
//
// What always holds: at most MOST_SHAPES_OF_A_NAME shapes of one name and MOST_KERNELS kernels. Shapes beyond are counted
// under the name alone; what has no place even so is counted as unmeasured. A name is found by its text: CUPTI may use the
// memory of a name for another one once a module was unloaded.
// Does not cover: threads. The owner of a table locks it.
#pragma once

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cupti_abi.h"

namespace holdfast {

constexpr std::size_t MOST_KERNELS = 4096;
constexpr std::size_t MOST_SHAPES_OF_A_NAME = 256;
constexpr std::size_t LONGEST_NAME = 16384;  // bytes that are compared
constexpr std::size_t LONGEST_SHOWN = 500;
constexpr std::size_t LONGEST_DEMANGLED = 1024;  // bytes; longer ones stay mangled, GNU's library has the same bound

using Shape = std::array<std::int32_t, 6>;  // grid, block

// FNV-1a: the same on every rank.
template <typename Word>
std::uint32_t hash(const Word *words, std::size_t count) {
    std::uint32_t value = 2166136261u;
    for (std::size_t index = 0; index < count; ++index)
        value = (value ^ static_cast<std::make_unsigned_t<Word>>(words[index])) * 16777619u;
    return value;
}

struct ShapeHash {
    std::size_t operator()(const Shape &shape) const { return hash(shape.data(), shape.size()); }
};

// One kernel of a window, as Python reads it. Durations in nanoseconds.
struct Row {
    const char *name;
    std::int32_t shape[6];
    std::uint32_t shaped;  // 0: all shapes of this name that had no place of their own
    std::uint32_t unused;
    std::uint64_t count;
    double least, most, median, mean, deviation;
};
static_assert(sizeof(Row) == 88);

// Durations of one kernel. A bucket of the histogram is at most 1/64 of its lower bound wide, and one nanosecond wide below
// 128 ns, so the median is off by less than 1.6 %.
class Durations {
  public:
    void add(std::uint64_t nanoseconds) {
        ++buckets_[bucket(nanoseconds)];
        if (count_ == 0) first_ = nanoseconds;
        // Around the first duration: squares of whole durations would cancel each other's digits.
        const double off = difference(nanoseconds, first_);
        squares_ += off * off;
        total_ += nanoseconds;
        least_ = std::min(least_, nanoseconds);
        most_ = std::max(most_, nanoseconds);
        ++count_;
    }

    void describe(Row &row) const {
        const double count = static_cast<double>(count_);
        row.count = count_;
        row.least = static_cast<double>(least_);
        row.most = static_cast<double>(most_);
        row.mean = static_cast<double>(total_) / count;
        row.median = std::clamp(median(), row.least, row.most);
        // Unbiased; NaN for a single duration.
        const double off = difference(total_, count_ * first_);
        row.deviation = count_ < 2 ? std::numeric_limits<double>::quiet_NaN()
                                   : std::sqrt(std::max(0.0, (squares_ - off * off / count) / (count - 1)));
    }

  private:
    static constexpr unsigned BUCKETS = 64;  // to each doubling

    static double difference(std::uint64_t one, std::uint64_t other) {
        return static_cast<double>(static_cast<std::int64_t>(one - other));
    }

    static std::uint16_t bucket(std::uint64_t nanoseconds) {
        if (nanoseconds < BUCKETS) return static_cast<std::uint16_t>(nanoseconds);
        const unsigned shift = 57 - static_cast<unsigned>(__builtin_clzll(nanoseconds));
        return static_cast<std::uint16_t>(shift * BUCKETS + (nanoseconds >> shift));
    }

    // The lower median, by rank between the bounds of its bucket.
    double median() const {
        std::vector<std::pair<std::uint16_t, std::uint32_t>> sorted(buckets_.begin(), buckets_.end());
        std::sort(sorted.begin(), sorted.end());
        const std::uint64_t rank = (count_ - 1) / 2;
        std::uint64_t before = 0;
        for (const auto &[index, here] : sorted) {
            if (rank >= before + here) {
                before += here;
                continue;
            }
            if (index < BUCKETS) return index;
            const unsigned shift = index / BUCKETS - 1;
            const double low = std::ldexp(index - shift * BUCKETS, static_cast<int>(shift));
            const double share = (static_cast<double>(rank - before) + 0.5) / here;
            return low + (std::ldexp(1, static_cast<int>(shift)) - 1) * share;
        }
        return 0.0;
    }

    std::uint64_t count_ = 0, total_ = 0, first_ = 0, most_ = 0;
    std::uint64_t least_ = std::numeric_limits<std::uint64_t>::max();
    double squares_ = 0;
    std::unordered_map<std::uint16_t, std::uint32_t> buckets_;
};

// A name as people read it: demangled and bounded. Where it was cut, a hash of the whole keeps two kernels apart.
inline std::string shown(const std::string &text) {
    if (text.empty()) return "(a kernel without a name)";
    std::string name = text;
    // Without the mangling of C++ the text may still be one: "i" would become "int".
    if (text.size() <= LONGEST_DEMANGLED && text.rfind("_Z", 0) == 0) {
        int status = 0;
        const std::unique_ptr<char, void (*)(void *)> demangled(
            abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status), std::free);
        if (status == 0 && demangled) name = demangled.get();
    }
    if (name.size() > LONGEST_SHOWN) {
        char mark[16];
        std::snprintf(mark, sizeof mark, "...#%08x", hash(text.data(), text.size()));
        name = name.substr(0, LONGEST_SHOWN - std::strlen(mark)) + mark;
    }
    return name;
}

struct Counts {
    std::uint64_t measured = 0;
    std::uint64_t untimed = 0;     // CUPTI had no reliable times for them
    std::uint64_t unmeasured = 0;  // no place in the table
};

class KernelTable {
  public:
    void add(const cupti::KernelRecord &record) {
        try {
            if (Durations *of = find(record)) {
                of->add(record.end - record.start);
                ++counts.measured;
                return;
            }
        } catch (...) {  // no memory: what is lost is counted, and the training continues
        }
        ++counts.unmeasured;
    }

    // The rows, whose names are in `texts`, one after another.
    std::vector<Row> rows(std::string &texts) const {
        std::vector<Row> rows;
        std::vector<std::size_t> places;
        const auto describe = [&](const Durations &of, const Shape &shape, bool shaped) {
            Row row{};
            std::memcpy(row.shape, shape.data(), sizeof row.shape);
            row.shaped = shaped;
            of.describe(row);
            rows.push_back(row);
            places.push_back(texts.size());
        };
        texts.clear();
        for (const auto &[text, name] : names_) {
            for (const auto &[shape, of] : name->shapes) describe(of, shape, true);
            if (name->has_others) describe(name->others, {}, false);
            texts.append(shown(name->text)).push_back('\0');
        }
        for (std::size_t index = 0; index < rows.size(); ++index) rows[index].name = texts.data() + places[index];
        return rows;
    }

    Counts counts;

  private:
    struct Name {
        std::string text;
        std::unordered_map<Shape, Durations, ShapeHash> shapes;
        Durations others;  // of shapes that have no place of their own
        bool has_others = false;
    };

    // Where the times of a kernel go; null if there is no place for it.
    Durations *find(const cupti::KernelRecord &record) {
        const char *text = record.name ? record.name : "";
        const std::string_view key(text, strnlen(text, LONGEST_NAME));
        const auto known = names_.find(key);
        if (known == names_.end() && kernels_ >= MOST_KERNELS) return nullptr;
        Name &name = known == names_.end() ? add_name(key) : *known->second;
        Shape shape;
        std::memcpy(shape.data(), record.shape, sizeof shape);
        const auto found = name.shapes.find(shape);
        if (found != name.shapes.end()) return &found->second;
        // The last places are kept for names without a shape.
        if (name.shapes.size() < MOST_SHAPES_OF_A_NAME && kernels_ < MOST_KERNELS * 3 / 4) {
            ++kernels_;
            return &name.shapes[shape];
        }
        if (!name.has_others && kernels_ >= MOST_KERNELS) return nullptr;
        kernels_ += !name.has_others;
        name.has_others = true;
        return &name.others;
    }

    Name &add_name(std::string_view key) {
        auto name = std::make_unique<Name>();
        name->text = key;
        Name &added = *name;
        names_.emplace(added.text, std::move(name));
        return added;
    }

    std::unordered_map<std::string_view, std::unique_ptr<Name>> names_;  // by the text within the name
    std::size_t kernels_ = 0;
};

}  // namespace holdfast
