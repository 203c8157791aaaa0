#include "kernel_names.h"

#include <cxxabi.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace holdfast {
namespace {

// FNV-1a: the same on every rank.
std::uint32_t hash(const std::string &text) {
    std::uint32_t value = 2166136261u;
    for (const unsigned char byte : text) value = (value ^ byte) * 16777619u;
    return value;
}

std::string for_people(const std::string &text) {
    if (text.empty()) return "(a kernel without a name)";
    std::string shown = text;
    if (text.size() <= LONGEST_DEMANGLED) {
        int status = 0;
        const std::unique_ptr<char, void (*)(void *)> demangled(
            abi::__cxa_demangle(text.c_str(), nullptr, nullptr, &status), std::free);
        // Without the mangling of C++ the text may still be one: "i" would become "int".
        if (status == 0 && demangled && text.rfind("_Z", 0) == 0) shown = demangled.get();
    }
    if (shown.size() > LONGEST_SHOWN) {
        char mark[16];
        std::snprintf(mark, sizeof mark, "...#%08x", hash(text));
        shown = shown.substr(0, LONGEST_SHOWN - std::strlen(mark)) + mark;
    }
    return shown;
}

}  // namespace

std::uint32_t KernelNames::number(const char *text) {
    std::string copy(text, strnlen(text, LONGEST_NAME));
    const auto known = numbers_.find(copy);
    if (known != numbers_.end()) return known->second;
    if (full()) return NONE;
    const auto number = static_cast<std::uint32_t>(names_.size());
    names_.push_back({copy, "", 0});
    numbers_.emplace(std::move(copy), number);
    return number;
}

bool KernelNames::still(std::uint32_t number, const char *text) const {
    return std::strncmp(names_[number].text.c_str(), text, LONGEST_NAME) == 0;
}

const std::string &KernelNames::shown(std::uint32_t number) {
    Name &name = names_[number];
    if (name.shown.empty()) name.shown = for_people(name.text);
    return name.shown;
}

void KernelNames::clear() {
    names_.clear();
    numbers_.clear();
}

}  // namespace holdfast
