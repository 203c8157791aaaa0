// The functions that Python calls, through ctypes. Plain C, so that one library serves every Python.
//
// Each returns 1 if it did what it says; else 0, with one clause in `reason`. No exception leaves this file.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "recorder.h"

#define SEEN_BY_PYTHON extern "C" __attribute__((visibility("default")))

namespace {

using holdfast::Recorder;

constexpr std::uint32_t VERSION = 1;  // of these functions and structures

struct Window {
    const holdfast::Row *rows;
    std::uint64_t count;
    holdfast::Counts counts;
    holdfast::Lost lost;
};
static_assert(sizeof(Window) == 64);

template <typename Action>
int told(char *reason, std::size_t size, Action action) {
    std::string text;
    bool done = false;
    try {
        done = action(text);
    } catch (...) {
        text = "no memory";
    }
    if (size != 0) {
        const std::size_t length = std::min(text.size(), size - 1);
        std::memcpy(reason, text.data(), length);
        reason[length] = '\0';
    }
    return done;
}

Recorder &recorder() { return Recorder::of_this_process(); }

}  // namespace

SEEN_BY_PYTHON std::uint32_t holdfast_kernels_version() { return VERSION; }

SEEN_BY_PYTHON int holdfast_kernels_open(const char *path, int loaded_only, char *reason, std::size_t size) {
    return told(reason, size, [&](std::string &text) { return recorder().open(path, loaded_only != 0, text); });
}

SEEN_BY_PYTHON int holdfast_kernels_driver_is_there(char *reason, std::size_t size) {
    return told(reason, size, [](std::string &text) { return holdfast::driver_is_there(text); });
}

SEEN_BY_PYTHON int holdfast_kernels_attach(char *reason, std::size_t size) {
    return told(reason, size, [](std::string &text) { return recorder().attach(text); });
}

SEEN_BY_PYTHON int holdfast_kernels_pause(char *reason, std::size_t size) {
    return told(reason, size, [](std::string &text) { return recorder().pause(text); });
}

SEEN_BY_PYTHON int holdfast_kernels_flush(int forced, char *reason, std::size_t size) {
    return told(reason, size, [&](std::string &text) { return recorder().flush(forced != 0, text); });
}

SEEN_BY_PYTHON int holdfast_kernels_detach(char *reason, std::size_t size) {
    return told(reason, size, [](std::string &text) { return recorder().detach(text); });
}

// What was measured since the last call. It stays valid until the next one.
SEEN_BY_PYTHON int holdfast_kernels_take(Window *window, char *reason, std::size_t size) {
    return told(reason, size, [&](std::string &text) {
        static holdfast::Rows *const rows = new holdfast::Rows;
        *window = {};
        if (!recorder().belongs_here()) {
            text = "this process was forked from one that uses CUPTI";
            return false;
        }
        recorder().take(*rows, window->lost);
        window->rows = rows->rows.data();
        window->count = rows->rows.size();
        window->counts = rows->counts;
        return true;
    });
}

SEEN_BY_PYTHON std::uint64_t holdfast_kernels_times_left() { return recorder().times_left(); }

SEEN_BY_PYTHON std::uint64_t holdfast_kernels_buffers_out() { return recorder().buffers_out(); }
