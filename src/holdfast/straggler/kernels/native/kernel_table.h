// The kernels of a window: for each name and launch shape, how long it ran.
//
// What always holds: at most MOST_SHAPES_OF_A_NAME shapes of one name and MOST_KERNELS kernels. Shapes beyond are counted
// under the name alone, and what has no place even so is counted as unmeasured. A table that became full begins anew
// with the next window: shapes that change for ever must not keep out the ones of tomorrow.
// Does not cover: threads. Whoever owns a table locks it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "cupti_abi.h"
#include "kernel_names.h"
#include "statistics.h"

namespace holdfast {

constexpr std::size_t MOST_KERNELS = 4096;
constexpr std::uint32_t MOST_SHAPES_OF_A_NAME = 256;
constexpr std::uint32_t TURN = 16384;  // records, after which the texts of names are compared again

using Shape = std::array<std::int32_t, 6>;  // grid, block

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

struct Counts {
    std::uint64_t measured = 0;
    std::uint64_t untimed = 0;     // CUPTI had no times for them
    std::uint64_t unmeasured = 0;  // no place in the table
};

struct Rows {
    std::vector<Row> rows;
    std::string names;
    Counts counts;
};

class KernelTable {
  public:
    KernelTable();
    void add(const cupti::KernelRecord *const *records, std::size_t count);
    // What was added since the last time.
    void take(Rows &into);

  private:
    struct alignas(64) Seen {  // a launch as a record has it, and the kernel that it is
        const char *name;
        Shape shape;
        Statistics *statistics;  // of the kernel; null: it has no place
        std::uint32_t at;        // of its name in names_seen_
        std::uint32_t turn;      // in which its name was known to be the same
    };
    struct NameSeen {
        std::uint32_t number;
        std::uint32_t turn;  // in which the text was compared last
    };
    struct Kernel {
        Statistics statistics;
        std::uint32_t name;
        bool shaped;
        Shape shape;
    };
    void add_group(const cupti::KernelRecord *const *records, std::size_t count);
    Statistics *statistics_of(const cupti::KernelRecord &record, std::size_t hash);
    const Seen *find(const cupti::KernelRecord &record, std::size_t hash);
    void measure(const cupti::KernelRecord &record, std::size_t hash);
    void begin_turn_for(std::size_t records);
    void learn(Seen *place, const char *name, const Shape &shape);
    std::uint32_t find_name(const char *name);
    std::uint32_t kernel(std::uint32_t name, const Shape &shape);
    std::uint32_t new_kernel(std::uint32_t name, bool shaped, const Shape &shape);
    void forget_seen(std::size_t places);
    void forget_all();

    // What was seen is a cache of what is known: forgotten when it is a quarter full, and begun anew with twice the
    // places. Fuller, and more launches would not be where they should be, which costs more than the memory.
    std::vector<Seen> seen_;
    std::size_t seen_count_ = 0;
    std::size_t mask_ = 0;
    std::vector<NameSeen> names_seen_;
    std::unordered_map<const char *, std::uint32_t> places_of_names_;
    std::uint32_t turn_ = 1;
    std::size_t left_in_turn_ = TURN;
    KernelNames names_;
    std::vector<Kernel> kernels_;  // never moves: seen_ points into it
    std::unordered_map<std::string, std::uint32_t> numbers_;
    OctavePool pool_;
    Counts counts_;
    bool full_ = false;
};

}  // namespace holdfast
