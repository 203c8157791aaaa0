#include "kernel_table.h"

#include <algorithm>
#include <cstring>

namespace holdfast {
namespace {

constexpr std::size_t LEAST_SEEN = 4096;  // places in the table of what was seen, powers of two
constexpr std::size_t MOST_SEEN = 32768;
constexpr std::size_t GROUP = 8;
constexpr char UNNAMED[] = "";

inline std::uint64_t word(const char *name) { return reinterpret_cast<std::uintptr_t>(name); }

// Two numbers of a shape. One word at a time: copied at once, they would take a detour through the stack.
inline std::uint64_t word(const std::int32_t *shape, unsigned index) {
    std::uint64_t two;
    std::memcpy(&two, shape + 2 * index, sizeof two);
    return two;
}

inline std::size_t hash(const cupti::KernelRecord &record) {
    // The upper bits of a product depend on all bits.
    return static_cast<std::size_t>(
        (word(record.name) * 0x9E3779B97F4A7C15u + word(record.shape, 0) * 0xC2B2AE3D27D4EB4Fu +
         word(record.shape, 1) * 0x165667B19E3779F9u + word(record.shape, 2) * 0xD6E8FEB86659FD93u) >>
        40);
}

inline bool same(const Shape &one, const Shape &other) {
    return std::memcmp(one.data(), other.data(), sizeof(Shape)) == 0;
}

// The same launch, with one branch: most often all of it is the same.
inline bool same(const char *name, const Shape &shape, const cupti::KernelRecord &record) {
    std::uint64_t differ = word(name) ^ word(record.name);
    for (unsigned index = 0; index < 3; ++index) differ |= word(shape.data(), index) ^ word(record.shape, index);
    return differ == 0;
}

}  // namespace

KernelTable::KernelTable() {
    kernels_.reserve(MOST_KERNELS);  // 1 MiB of addresses: memory only as far as there are kernels
    forget_seen(LEAST_SEEN);
}

// Where to add the times of a kernel; null if it has no place.
inline Statistics *KernelTable::statistics_of(const cupti::KernelRecord &record, std::size_t hash) {
    // Nearly always: seen in this turn, and where it should be.
    const Seen &likely = seen_[hash & mask_];
    if (likely.turn == turn_ && same(likely.name, likely.shape, record)) return likely.statistics;
    return find(record, hash)->statistics;
}

inline void KernelTable::measure(const cupti::KernelRecord &record, std::size_t hash) {
    if (record.start - 1 >= record.end) {  // no start, which wraps around, or the end before it
        ++counts_.untimed;
        return;
    }
    bool measured = false;
    try {
        Statistics *of = statistics_of(record, hash);
        measured = of != nullptr && of->add(record.end - record.start, pool_);
    } catch (...) {  // no memory: what is lost is counted, and the training goes on
    }
    if (measured) return;
    full_ = true;
    ++counts_.unmeasured;
}

// A turn has at most TURN records: one that would become longer ends before them.
void KernelTable::begin_turn_for(std::size_t records) {
    if (left_in_turn_ < records) {
        left_in_turn_ = TURN;
        ++turn_;
    }
    left_in_turn_ -= records;
}

void KernelTable::add(const cupti::KernelRecord *const *records, std::size_t count) {
    const std::uint64_t lost = counts_.untimed + counts_.unmeasured;
    for (std::size_t first = 0; first < count; first += GROUP)
        add_group(records + first, std::min(GROUP, count - first));
    counts_.measured += count - (counts_.untimed + counts_.unmeasured - lost);
}

// The first step for all of a group, so that the processor fetches what the second needs in the meantime.
inline void KernelTable::add_group(const cupti::KernelRecord *const *records, std::size_t count) {
    std::size_t hashes[GROUP];
    begin_turn_for(count);
    for (std::size_t index = 0; index < count; ++index) {
        hashes[index] = hash(*records[index]);
        __builtin_prefetch(&seen_[hashes[index] & mask_]);
    }
    for (std::size_t index = 0; index < count; ++index) measure(*records[index], hashes[index]);
}

const KernelTable::Seen *KernelTable::find(const cupti::KernelRecord &record, std::size_t hash) {
    const char *name = record.name ? record.name : UNNAMED;
    Shape shape;
    std::memcpy(shape.data(), record.shape, sizeof shape);
    for (std::size_t at = hash;; ++at) {
        Seen *place = &seen_[at & mask_];
        if (place->name == nullptr) {
            if (seen_count_ < seen_.size() / 4) {
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
    const std::uint32_t known = number == NONE ? NONE : kernel(number, shape);
    *place = {name, shape, known == NONE ? nullptr : &kernels_[known].statistics, at, 0};
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
    seen_.assign(places, Seen{nullptr, {}, nullptr, 0, 0});
    seen_count_ = 0;
    mask_ = places - 1;
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
