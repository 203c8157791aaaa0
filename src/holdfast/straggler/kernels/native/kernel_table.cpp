#include "kernel_table.h"

#include <cstring>

namespace holdfast {
namespace {

// Tables of what was seen, with open addressing: powers of two, and never more than half full.
constexpr std::size_t SEEN = 16384;
constexpr std::size_t NAMES_SEEN = 16384;
constexpr char UNNAMED[] = "";

inline std::size_t mixed(std::uint64_t value) { return static_cast<std::size_t>((value ^ (value >> 32)) >> 3); }

inline std::size_t hash(const char *name, const Shape &shape) {
    std::uint64_t words[3];
    std::memcpy(words, shape.data(), sizeof words);
    const auto pointer = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(name));
    return mixed(pointer * 0x9E3779B97F4A7C15u + words[0] * 0xC2B2AE3D27D4EB4Fu + words[1] * 0x165667B19E3779F9u +
                 words[2] * 0xD6E8FEB86659FD93u);
}

inline bool same(const Shape &one, const Shape &other) {
    return std::memcmp(one.data(), other.data(), sizeof(Shape)) == 0;
}

}  // namespace

KernelTable::KernelTable() { forget_seen(); }

void KernelTable::add(const cupti::KernelRecord &record) {
    if (record.start == 0 || record.end < record.start) {
        ++counts_.untimed;
        return;
    }
    if (--left_in_turn_ == 0) {
        left_in_turn_ = TURN;
        ++turn_;
    }
    const Seen *seen = find(record);
    if (seen->kernel == NONE || !kernels_[seen->kernel].statistics.add(record.end - record.start, pool_)) {
        full_ = true;
        ++counts_.unmeasured;
        return;
    }
    ++counts_.measured;
}

const KernelTable::Seen *KernelTable::find(const cupti::KernelRecord &record) {
    const char *name = record.name ? record.name : UNNAMED;
    Shape shape;
    std::memcpy(shape.data(), record.grid, sizeof shape);
    for (std::size_t at = hash(name, shape);; ++at) {
        Seen *place = &seen_[at & (SEEN - 1)];
        if (place->name == nullptr) place = learn(place, record, shape);
        if (place->name != name || !same(place->shape, shape)) continue;
        NameSeen &of = names_seen_[place->at];
        if (of.turn == turn_) return place;
        if (of.number == NONE || names_.still(of.number, name)) {
            of.turn = turn_;
            return place;
        }
        forget_seen();  // the memory holds another name by now
        at = hash(name, shape) - 1;
    }
}

KernelTable::Seen *KernelTable::learn(Seen *place, const cupti::KernelRecord &record, const Shape &shape) {
    const char *name = record.name ? record.name : UNNAMED;
    if (seen_count_ >= SEEN / 2 || names_seen_count_ >= NAMES_SEEN / 2) {
        forget_seen();
        place = &seen_[hash(name, shape) & (SEEN - 1)];
    }
    NameSeen *of = find_name(name);
    if (of->turn != turn_ && of->number != NONE && !names_.still(of->number, name)) {
        forget_seen();
        place = &seen_[hash(name, shape) & (SEEN - 1)];
        of = find_name(name);
    }
    of->turn = turn_;
    const std::uint32_t number = of->number == NONE ? NONE : kernel(of->number, shape);
    *place = {name, shape, number, static_cast<std::uint32_t>(of - names_seen_.data())};
    ++seen_count_;
    return place;
}

KernelTable::NameSeen *KernelTable::find_name(const char *name) {
    const auto pointer = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(name));
    for (std::size_t at = mixed(pointer * 0x9E3779B97F4A7C15u);; ++at) {
        NameSeen &place = names_seen_[at & (NAMES_SEEN - 1)];
        if (place.name == name) return &place;
        if (place.name != nullptr) continue;
        place = {name, names_.number(name), turn_};
        ++names_seen_count_;
        return &place;
    }
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
    kernels_.push_back({name, shaped, shape, {}});
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

void KernelTable::forget_seen() {
    seen_.assign(SEEN, Seen{nullptr, {}, NONE, 0});
    names_seen_.assign(NAMES_SEEN, NameSeen{nullptr, NONE, 0});
    seen_count_ = names_seen_count_ = 0;
}

void KernelTable::forget_all() {
    forget_seen();
    names_.clear();
    kernels_.clear();
    numbers_.clear();
    full_ = false;
}

}  // namespace holdfast
