#include "kernel_table.h"

#include <algorithm>
#include <cstring>

namespace holdfast {
namespace {

constexpr std::size_t LEAST_SEEN = 1024;  // places in the table of what was seen, powers of two
constexpr std::size_t MOST_SEEN = 16384;
constexpr std::size_t GROUP = 16;
constexpr std::uint32_t UNTIMED = NONE - 1;
constexpr char UNNAMED[] = "";

inline std::size_t hash(const cupti::KernelRecord &record) {
    std::uint64_t words[3];
    std::memcpy(words, record.shape, sizeof words);
    const auto name = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(record.name));
    // The upper bits of a product depend on all bits.
    return static_cast<std::size_t>((name * 0x9E3779B97F4A7C15u + words[0] * 0xC2B2AE3D27D4EB4Fu +
                                     words[1] * 0x165667B19E3779F9u + words[2] * 0xD6E8FEB86659FD93u) >>
                                    40);
}

inline bool same(const Shape &one, const Shape &other) {
    return std::memcmp(one.data(), other.data(), sizeof(Shape)) == 0;
}

inline bool same(const Shape &one, const cupti::KernelRecord &record) {
    return std::memcmp(one.data(), record.shape, sizeof(Shape)) == 0;
}

}  // namespace

KernelTable::KernelTable() { forget_seen(LEAST_SEEN); }

inline std::uint32_t KernelTable::kernel_of(const cupti::KernelRecord &record, std::size_t hash) {
    if (record.start == 0 || record.end < record.start) {
        ++counts_.untimed;
        return UNTIMED;
    }
    if (--left_in_turn_ == 0) {
        left_in_turn_ = TURN;
        ++turn_;
    }
    // Nearly always: seen in this turn, and where it should be.
    const Seen &likely = seen_[hash & (seen_.size() - 1)];
    if (likely.turn == turn_ && likely.name == record.name && same(likely.shape, record)) return likely.kernel;
    try {
        return find(record, hash)->kernel;
    } catch (...) {  // no memory: what is lost is counted, and the training goes on
        return NONE;
    }
}

inline void KernelTable::measure(std::uint32_t kernel, std::uint64_t nanoseconds) {
    bool measured = false;
    try {
        measured = kernel != NONE && kernels_[kernel].statistics.add(nanoseconds, pool_);
    } catch (...) {
    }
    full_ = full_ || !measured;
    ++(measured ? counts_.measured : counts_.unmeasured);
}

void KernelTable::add(const cupti::KernelRecord *const *records, std::size_t count) {
    std::uint32_t kernels[GROUP];
    std::size_t hashes[GROUP];
    for (std::size_t first = 0; first < count; first += GROUP) {
        const std::size_t size = std::min(GROUP, count - first);
        // Each step for all of a group, so that the processor fetches what the next one needs in the meantime.
        for (std::size_t index = 0; index < size; ++index) {
            hashes[index] = hash(*records[first + index]);
            __builtin_prefetch(&seen_[hashes[index] & (seen_.size() - 1)]);
        }
        for (std::size_t index = 0; index < size; ++index) {
            kernels[index] = kernel_of(*records[first + index], hashes[index]);
            if (kernels[index] < kernels_.size()) __builtin_prefetch(&kernels_[kernels[index]].statistics, 1);
        }
        for (std::size_t index = 0; index < size; ++index) {
            const cupti::KernelRecord &record = *records[first + index];
            if (kernels[index] != UNTIMED) measure(kernels[index], record.end - record.start);
        }
    }
}

const KernelTable::Seen *KernelTable::find(const cupti::KernelRecord &record, std::size_t hash) {
    const char *name = record.name ? record.name : UNNAMED;
    Shape shape;
    std::memcpy(shape.data(), record.shape, sizeof shape);
    for (std::size_t at = hash;; ++at) {
        Seen *place = &seen_[at & (seen_.size() - 1)];
        if (place->name == nullptr) {
            if (seen_count_ < seen_.size() / 2) {
                learn(place, name, shape);
            } else {
                forget_seen(seen_.size() < MOST_SEEN ? seen_.size() * 2 : MOST_SEEN);
                at = hash - 1;
                continue;
            }
        }
        if (place->name != name || !same(place->shape, shape)) continue;
        if (place->turn == turn_) return place;
        NameSeen &of = names_seen_[place->at];
        if (of.turn == turn_ || of.number == NONE || names_.still(of.number, name)) {
            of.turn = place->turn = turn_;
            return place;
        }
        forget_seen(seen_.size());  // the memory holds another name by now
        at = hash - 1;
    }
}

void KernelTable::learn(Seen *place, const char *name, const Shape &shape) {
    const std::uint32_t at = find_name(name);
    const std::uint32_t number = names_seen_[at].number;
    *place = {name, shape, number == NONE ? NONE : kernel(number, shape), at, 0};
    ++seen_count_;
}

std::uint32_t KernelTable::find_name(const char *name) {
    const auto known = places_of_names_.find(name);
    if (known != places_of_names_.end()) return known->second;
    const auto at = static_cast<std::uint32_t>(names_seen_.size());
    names_seen_.push_back({names_.number(name), turn_});
    places_of_names_.emplace(name, at);
    return at;
}

std::uint32_t KernelTable::kernel(std::uint32_t name, const Shape &shape) {
    std::string key(reinterpret_cast<const char *>(&name), sizeof name);
    const std::string shapeless = key;
    key.append(reinterpret_cast<const char *>(shape.data()), sizeof shape);
    auto known = numbers_.find(key);
    if (known != numbers_.end()) return known->second;
    // The last places are kept for names without a shape.
    const bool shaped = names_.shapes(name) < MOST_SHAPES_OF_A_NAME && kernels_.size() < MOST_KERNELS * 3 / 4;
    if (!shaped) {
        full_ = true;
        known = numbers_.find(shapeless);
        if (known != numbers_.end()) return known->second;
    }
    const std::uint32_t number = new_kernel(name, shaped, shape);
    if (number != NONE) numbers_.emplace(shaped ? key : shapeless, number);
    return number;
}

std::uint32_t KernelTable::new_kernel(std::uint32_t name, bool shaped, const Shape &shape) {
    if (kernels_.size() >= MOST_KERNELS) return NONE;
    kernels_.push_back({{}, name, shaped, shape});
    if (shaped) names_.one_more_shape(name);
    return static_cast<std::uint32_t>(kernels_.size() - 1);
}

void KernelTable::take(Rows &into) {
    into.rows.clear();
    into.names.clear();
    into.counts = counts_;
    std::vector<std::size_t> names;
    for (const Kernel &kernel : kernels_) {
        const Statistics &of = kernel.statistics;
        if (of.count() == 0) continue;
        Row row{nullptr, {}, kernel.shaped, 0, of.count(), of.least(), of.most(), of.median(pool_), of.mean(),
                of.deviation()};
        std::memcpy(row.shape, kernel.shape.data(), sizeof row.shape);
        names.push_back(into.names.size());
        into.names.append(names_.shown(kernel.name)).push_back('\0');
        into.rows.push_back(row);
    }
    for (std::size_t index = 0; index < names.size(); ++index)
        into.rows[index].name = into.names.data() + names[index];
    for (Kernel &kernel : kernels_) kernel.statistics = {};
    pool_.clear();
    counts_ = {};
    ++turn_;
    if (full_ || names_.full()) forget_all();
}

void KernelTable::forget_seen(std::size_t places) {
    seen_.assign(places, Seen{nullptr, {}, NONE, 0, 0});
    seen_count_ = 0;
    names_seen_.clear();
    places_of_names_.clear();
}

void KernelTable::forget_all() {
    forget_seen(LEAST_SEEN);
    names_.clear();
    kernels_.clear();
    numbers_.clear();
    full_ = false;
}

}  // namespace holdfast
