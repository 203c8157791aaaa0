// The names of kernels: a copy of each text, and where in CUPTI's memory it was last seen.
//
// A record points at its name. The pointer is compared with each record, and its text again after each few ten
// thousand records and in each window, because CUPTI may use the memory for another name once a module was unloaded. Not
// covered: memory that was used again before the record came, or since its text was compared last.
// For people a name is demangled and bounded; where it was cut, a hash of the whole keeps two kernels apart.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace holdfast {

constexpr std::uint32_t NONE = 0xFFFFFFFF;
constexpr std::size_t MOST_NAMES = 4096;
constexpr std::size_t LONGEST_NAME = 16384;  // bytes that are looked at
constexpr std::size_t LONGEST_SHOWN = 500;
constexpr std::size_t LONGEST_DEMANGLED = 1024;  // bytes; longer ones stay mangled, GNU's library has the same bound

class KernelNames {
  public:
    // The number of this text; NONE when there are as many as there may be.
    std::uint32_t number(const char *text);
    bool still(std::uint32_t number, const char *text) const;
    const std::string &shown(std::uint32_t number);
    bool full() const { return names_.size() >= MOST_NAMES; }
    void clear();

    std::uint32_t shapes(std::uint32_t number) const { return names_[number].shapes; }
    void one_more_shape(std::uint32_t number) { ++names_[number].shapes; }

  private:
    struct Name {
        std::string text, shown;
        std::uint32_t shapes = 0;
    };
    std::vector<Name> names_;
    std::unordered_map<std::string, std::uint32_t> numbers_;
};

}  // namespace holdfast
