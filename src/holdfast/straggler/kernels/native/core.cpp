// The kernel core: it takes CUPTI's records, attaches CUPTI and lets it go. Python calls it with ctypes.
//
// What always holds:
// - Nothing is linked: CUPTI and the driver are opened at run time. Some versions of CUPTI crash in the first call on a
//   machine without a working driver, so no function of CUPTI is called before the driver was found to work.
// - No lock is held while CUPTI is called: its callbacks take the locks from threads of its own.
// - CUPTI leaves only when nothing here calls it any more with the subscriber that is gone then.
// - A CUPTI that would not leave is not asked again: each try makes all calls of CUDA run a callback until the next
//   `attach`, and keeps other tools from subscribing.
// - Nothing happens in a forked child: what it inherited belongs to its parent.
// - The recorder is never destroyed: CUPTI's threads may call until the process is gone.
// Functions that Python calls are called by one thread at a time.
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cupti_abi.h"
#include "kernel_table.h"

#define SEEN_BY_PYTHON extern "C" __attribute__((visibility("default")))

namespace holdfast {
namespace {

constexpr char DRIVER[] = "libcuda.so.1";
constexpr char FORKED[] = "this process was forked from one that uses CUPTI";
constexpr std::uint32_t VERSION = 2;  // of the functions and structures that Python sees
// About 2,500 kernels. CUPTI keeps a buffer as long as one kernel in it still runs, so larger ones would come late.
constexpr std::size_t LARGE_BYTES = 512 << 10;
constexpr std::size_t SMALL_BYTES = 16 << 10;
constexpr std::size_t MOST_LARGE = 128;
constexpr std::size_t ALIGNMENT = 64;
constexpr std::uint64_t SECOND = 1'000'000'000;
constexpr std::size_t BATCH = 512;         // records found without the lock, then added under it
constexpr std::size_t MOST_SWITCHES = 1 << 16;
constexpr auto COUNTS = std::memory_order_relaxed;  // orders nothing: these are sums

std::string last_error() {
    const char *text = dlerror();
    return text ? text : "no reason given";
}

template <typename Function>
bool look_up(void *library, const char *name, Function &function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
}

// Whether the driver works and there is a device. Calls cuInit: for processes that use CUDA already.
bool driver_works(std::string &reason) {
    void *library = dlopen(DRIVER, RTLD_LAZY | RTLD_LOCAL);
    int (*initialise)(unsigned) = nullptr;
    int (*count_devices)(int *) = nullptr;
    int devices = 0;
    if (library == nullptr) {
        reason = "no CUDA driver (" + last_error() + ")";
    } else if (!look_up(library, "cuInit", initialise) || !look_up(library, "cuDeviceGetCount", count_devices)) {
        reason = std::string(DRIVER) + " has no cuInit or cuDeviceGetCount";
    } else if (const int error = initialise(0)) {
        reason = "cuInit failed with error " + std::to_string(error);
    } else if (const int failed = count_devices(&devices)) {
        reason = "cuDeviceGetCount failed with error " + std::to_string(failed);
    } else if (devices <= 0) {
        reason = "the CUDA driver sees no device";
    } else {
        return true;
    }
    return false;
}

// The buffers that CUPTI fills: which are out, and whose a buffer is that comes back.
//
// What always holds: a request is answered with a buffer (CUPTI before CUDA 12.9 may crash where it is refused one); when
// many are out, with a small one. Only what was handed out here is ever freed, because after another tool took CUPTI's
// callbacks over, and back, buffers of the one come to the other.
// Does not cover: a bound on how many CUPTI asks for; beyond MOST_LARGE each costs SMALL_BYTES.
class Buffers {
  public:
    // Null only when there is no memory at all.
    std::uint8_t *hand_out(std::size_t *size) {
        const std::lock_guard<std::mutex> guard(lock_);
        for (const std::size_t bytes : {large_ < MOST_LARGE ? LARGE_BYTES : SMALL_BYTES, SMALL_BYTES}) {
            auto *buffer = static_cast<std::uint8_t *>(std::aligned_alloc(ALIGNMENT, bytes));
            if (buffer == nullptr) continue;
            large_ += bytes == LARGE_BYTES;
            out_[buffer] = {bytes, left_};
            *size = bytes;
            return buffer;
        }
        return nullptr;
    }

    // Whether it was handed out here and is out.
    bool is_out(std::uint8_t *buffer) {
        const std::lock_guard<std::mutex> guard(lock_);
        return out_.count(buffer) != 0;
    }

    void come_back(std::uint8_t *buffer) {
        const std::lock_guard<std::mutex> guard(lock_);
        const auto found = out_.find(buffer);
        if (found != out_.end()) release(found);
    }

    // CUPTI is gone from the process. What is out stays valid until it was gone once more: freed memory that another tool
    // still wrote to would be the training's.
    void cupti_left() {
        const std::lock_guard<std::mutex> guard(lock_);
        ++left_;
        for (auto one = out_.begin(); one != out_.end();)
            one = one->second.left + 1 < left_ ? release(one) : std::next(one);
    }

    std::size_t out() {
        const std::lock_guard<std::mutex> guard(lock_);
        return out_.size();
    }

  private:
    struct Out {
        std::size_t size;
        std::uint32_t left;  // how often CUPTI left before it was handed out
    };
    using Map = std::unordered_map<std::uint8_t *, Out>;

    Map::iterator release(Map::iterator one) {
        large_ -= one->second.size == LARGE_BYTES;
        std::free(one->first);
        return out_.erase(one);
    }

    std::mutex lock_;
    Map out_;
    std::size_t large_ = 0;
    std::uint32_t left_ = 0;
};

// What Python takes. The rows stay valid until it takes again.
struct Window {
    const Row *rows;
    std::uint64_t count;
    Counts counts;
    std::uint64_t dropped;  // records that CUPTI had no room for
    std::uint64_t foreign;  // buffers that came back here and are another tool's
};
static_assert(sizeof(Window) == 56);

class Recorder {
  public:
    static Recorder &of_this_process() {
        static Recorder *const recorder = new Recorder;
        return *recorder;
    }

    // Finds the functions, and calls none. With `loaded_only`, only in a copy that the process has loaded already.
    bool open(const char *path, bool loaded_only, std::string &reason) {
        if (opened_) return true;  // one copy of CUPTI in a process, for all callers
        void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL | (loaded_only ? RTLD_NOLOAD : 0));
        if (library == nullptr) {
            reason = loaded_only ? std::string(path) + " is not loaded" : last_error();
            return false;
        }
        const char *missing = nullptr;
        const auto need = [&](const char *name, auto &function) {
            if (!look_up(library, name, function) && missing == nullptr) missing = name;
        };
        need("cuptiGetVersion", cupti_.GetVersion);
        need("cuptiGetResultString", cupti_.GetResultString);
        need("cuptiGetTimestamp", cupti_.GetTimestamp);
        need("cuptiActivityRegisterCallbacks", cupti_.ActivityRegisterCallbacks);
        need("cuptiActivityRegisterTimestampCallback", cupti_.ActivityRegisterTimestampCallback);
        need("cuptiActivityEnable", cupti_.ActivityEnable);
        need("cuptiActivityDisable", cupti_.ActivityDisable);
        need("cuptiActivityFlushAll", cupti_.ActivityFlushAll);
        need("cuptiActivityGetNextRecord", cupti_.ActivityGetNextRecord);
        need("cuptiActivityGetNumDroppedRecords", cupti_.ActivityGetNumDroppedRecords);
        need("cuptiFinalize", cupti_.Finalize);
        need("cuptiSubscribe", cupti_.Subscribe);
        need("cuptiUnsubscribe", cupti_.Unsubscribe);
        need("cuptiEnableDomain", cupti_.EnableDomain);
        if (missing != nullptr) {
            reason = std::string(path) + " has no " + missing;
            dlclose(library);
            return false;
        }
        return opened_ = true;
    }

    bool version(std::uint32_t &version, std::string &reason) {
        return ready(reason) && worked(cupti_.GetVersion(&version), "cuptiGetVersion", reason);
    }

    // Registers the callbacks and the clock, whichever tool had them, and records from now on. torch.profiler has CUPTI
    // count the processor's cycles in place of nanoseconds, and sets that anew each time it starts. Where no clock can be
    // registered (WSL2), CUPTI's own is good if it shows the time of the system: then no tool has replaced it.
    bool attach(std::string &reason) {
        return ready(reason) && stays(reason) &&
               worked(cupti_.ActivityRegisterCallbacks(on_request, on_complete), "cuptiActivityRegisterCallbacks",
                      reason) &&
               (worked(cupti_.ActivityRegisterTimestampCallback(nanoseconds), "cuptiActivityRegisterTimestampCallback",
                       reason) ||
                counts_nanoseconds()) &&
               resume(reason);
    }

    bool resume(std::string &reason) {
        if (!ready(reason)) return false;
        std::uint64_t now = 0;
        if (cupti_.GetTimestamp(&now) == 0) {
            const std::lock_guard<std::mutex> guard(table_lock_);
            if (switched_on_.size() >= MOST_SWITCHES)
                switched_on_.erase(switched_on_.begin(), switched_on_.begin() + MOST_SWITCHES / 2);
            switched_on_.push_back(now);
        }
        return worked(cupti_.ActivityEnable(cupti::CONCURRENT_KERNEL), "cuptiActivityEnable", reason);
    }

    // Records no launch from now on. Kernels that were launched before come when they have ended.
    bool pause(std::string &reason) {
        return ready(reason) &&
               worked(cupti_.ActivityDisable(cupti::CONCURRENT_KERNEL), "cuptiActivityDisable", reason);
    }

    // Delivers what is complete; `forced` also what is not, which then has no times.
    bool flush(bool forced, std::string &reason) {
        if (!ready(reason)) return false;
        if (!worked(cupti_.ActivityFlushAll(forced ? cupti::FORCED : 0), "cuptiActivityFlushAll", reason)) return false;
        count_dropped(nullptr, 0);
        return true;
    }

    // CUPTI leaves the process with the end of the next CUDA call of any thread: NVIDIA's advice for doing it safely.
    // False when another tool has subscribed, or CUPTI would not leave the last time: that shows only in that call.
    bool detach(std::string &reason) {
        if (!ready(reason)) return false;
        const int leaving = leaving_.load();
        if (leaving == ASKED || leaving == LEAVES) return true;
        std::uint32_t found = 0;
        if (!stays(reason) || !worked(refused_.load(), "cuptiFinalize", reason) || !version(found, reason)) return false;
        if (found < cupti::LEAVES_SAFELY) {
            reason = "CUPTI before CUDA 12.5 (its version is " + std::to_string(found) + ") may crash when it leaves";
            return false;
        }
        if (!worked(cupti_.Subscribe(&subscriber_, on_call, nullptr), "cuptiSubscribe", reason)) return false;
        leaving_.store(SUBSCRIBED);
        if (worked(cupti_.EnableDomain(1, subscriber_, cupti::RUNTIME_API), "cuptiEnableDomain", reason) &&
            worked(cupti_.EnableDomain(1, subscriber_, cupti::DRIVER_API), "cuptiEnableDomain", reason)) {
            leaving_.store(ASKED);  // last: the next call of any thread may end CUPTI
            return true;
        }
        std::string unheard;
        stays(unheard);
        return false;
    }

    bool take(Window &window, std::string &reason) {
        window = {};
        if (!belongs_here()) {
            reason = FORKED;
            return false;
        }
        KernelTable taken;
        {
            const std::lock_guard<std::mutex> guard(table_lock_);
            std::swap(taken, table_);
        }
        rows_ = taken.rows(texts_);
        window = {rows_.data(), rows_.size(), taken.counts, dropped_.exchange(0, COUNTS), foreign_.exchange(0, COUNTS)};
        return true;
    }

    std::uint64_t times_left() const { return times_left_.load(); }
    std::size_t buffers_out() { return buffers_.out(); }

  private:
    // SUBSCRIBED: not yet asked to leave, or it would not; the thread of `attach` and `detach` ends that.
    enum Leaving : int { STAYS, SUBSCRIBED, ASKED, LEAVES };

    bool belongs_here() const { return getpid() == process_; }

    bool ready(std::string &reason) {
        if (!belongs_here()) {
            reason = FORKED;
        } else if (!opened_) {
            reason = "no CUPTI library was opened";
        } else {
            works_ = works_ || driver_works(reason);
            return works_;
        }
        return false;
    }

    bool worked(cupti::Result result, const char *call, std::string &reason) {
        if (result == 0) return true;
        const char *text = nullptr;
        if (cupti_.GetResultString(result, &text) != 0 || text == nullptr) text = "an unknown error";
        reason = std::string(call) + " failed: " + text + " (" + std::to_string(result) + ")";
        return false;
    }

    // Takes back that CUPTI should leave, if there is still time. A subscription that would not end is ended the next time.
    bool stays(std::string &reason) {
        int leaving = ASKED;
        if (leaving_.compare_exchange_strong(leaving, SUBSCRIBED)) leaving = SUBSCRIBED;
        if (leaving == LEAVES) {
            reason = "CUPTI is just being detached";
            return false;
        }
        if (leaving == STAYS) return true;
        if (!worked(cupti_.Unsubscribe(subscriber_), "cuptiUnsubscribe", reason)) return false;
        leaving_.store(STAYS);
        return true;
    }

    static void on_call(void *, std::uint32_t, std::uint32_t, const void *data) {
        Recorder &recorder = of_this_process();
        std::uint32_t site = 0;
        if (data != nullptr) std::memcpy(&site, data, sizeof site);
        int asked = ASKED;
        if (site != cupti::CALL_ENDS || !recorder.belongs_here()) return;
        if (!recorder.leaving_.compare_exchange_strong(asked, LEAVES)) return;
        const cupti::Result refused = recorder.cupti_.Finalize();
        if (refused != 0) {
            recorder.refused_.store(refused);
            recorder.leaving_.store(SUBSCRIBED);
            return;
        }
        recorder.buffers_.cupti_left();
        recorder.times_left_.fetch_add(1, COUNTS);
        recorder.leaving_.store(STAYS);
    }

    bool counts_nanoseconds() {
        std::uint64_t now = 0;
        return cupti_.GetTimestamp(&now) == 0 && now + SECOND > nanoseconds() && now < nanoseconds() + SECOND;
    }

    // The clock that CUPTI has by default; a profiler that registers none reads it as such.
    static std::uint64_t nanoseconds() {
        timespec now{};
        clock_gettime(CLOCK_REALTIME, &now);
        return static_cast<std::uint64_t>(now.tv_sec) * SECOND + static_cast<std::uint64_t>(now.tv_nsec);
    }

    static void on_request(std::uint8_t **buffer, std::size_t *size, std::size_t *most_records) {
        *most_records = 0;
        *size = 0;
        *buffer = nullptr;
        try {
            *buffer = of_this_process().buffers_.hand_out(size);
        } catch (...) {  // no memory for the list of buffers
        }
    }

    static void on_complete(void *context, std::uint32_t stream, std::uint8_t *buffer, std::size_t, std::size_t filled) {
        Recorder &recorder = of_this_process();
        if (!recorder.belongs_here()) return;
        if (!recorder.buffers_.is_out(buffer)) {
            recorder.foreign_.fetch_add(1, COUNTS);
            return;
        }
        recorder.read(buffer, filled);
        recorder.count_dropped(context, stream);
        recorder.buffers_.come_back(buffer);
    }

    void read(std::uint8_t *buffer, std::size_t filled) {
        const cupti::KernelRecord *batch[BATCH];
        std::size_t count = 0;
        void *record = nullptr;
        while (filled != 0 && cupti_.ActivityGetNextRecord(buffer, filled, &record) == 0) {
            const auto *kernel = static_cast<const cupti::KernelRecord *>(record);
            if (kernel->kind != cupti::CONCURRENT_KERNEL && kernel->kind != cupti::KERNEL) continue;
            batch[count++] = kernel;
            if (count < BATCH) continue;
            add(batch, count);
            count = 0;
        }
        add(batch, count);
    }

    void add(const cupti::KernelRecord *const *records, std::size_t count) {
        const std::lock_guard<std::mutex> guard(table_lock_);
        for (std::size_t index = 0; index < count; ++index) {
            if (has_times(*records[index]))
                table_.add(*records[index]);
            else
                ++table_.counts.untimed;
        }
    }

    // A kernel that still ran when recording was switched off may get the time of the next switching on as its end
    // (Kineto met this, pytorch/kineto#1105). So a kernel during which it was switched on does not count.
    bool has_times(const cupti::KernelRecord &record) const {
        if (record.start == 0 || record.end < record.start) return false;
        const auto next = std::upper_bound(switched_on_.begin(), switched_on_.end(), record.start);
        return next == switched_on_.end() || *next > record.end;
    }

    void count_dropped(void *context, std::uint32_t stream) {
        std::size_t dropped = 0;
        if (cupti_.ActivityGetNumDroppedRecords(context, stream, &dropped) == 0) dropped_.fetch_add(dropped, COUNTS);
    }

    const int process_ = getpid();
    cupti::Functions cupti_{};
    bool opened_ = false, works_ = false;
    std::atomic<int> leaving_{STAYS};
    std::atomic<cupti::Result> refused_{0};  // why CUPTI would not leave
    std::atomic<std::uint64_t> times_left_{0}, dropped_{0}, foreign_{0};
    void *subscriber_ = nullptr;
    Buffers buffers_;
    std::mutex table_lock_;
    KernelTable table_;
    std::vector<std::uint64_t> switched_on_;  // when recording was, by CUPTI's clock
    std::vector<Row> rows_;                   // what was taken last
    std::string texts_;
};

// No exception leaves the library: 1 if `action` did what it says; else 0, with one clause in `reason`.
template <typename Action>
int told(char *reason, std::size_t size, Action action) {
    std::string text;
    bool done = false;
    try {
        done = action(Recorder::of_this_process(), text);
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

}  // namespace
}  // namespace holdfast

using holdfast::Recorder;
using holdfast::told;

SEEN_BY_PYTHON std::uint32_t holdfast_kernels_version() { return holdfast::VERSION; }

SEEN_BY_PYTHON int holdfast_kernels_open(const char *path, int loaded_only, char *reason, std::size_t size) {
    return told(reason, size, [&](Recorder &of, std::string &text) { return of.open(path, loaded_only != 0, text); });
}

SEEN_BY_PYTHON int holdfast_kernels_cupti_version(std::uint32_t *version, char *reason, std::size_t size) {
    return told(reason, size, [&](Recorder &of, std::string &text) { return of.version(*version, text); });
}

SEEN_BY_PYTHON int holdfast_kernels_attach(char *reason, std::size_t size) {
    return told(reason, size, [](Recorder &of, std::string &text) { return of.attach(text); });
}

SEEN_BY_PYTHON int holdfast_kernels_resume(char *reason, std::size_t size) {
    return told(reason, size, [](Recorder &of, std::string &text) { return of.resume(text); });
}

SEEN_BY_PYTHON int holdfast_kernels_pause(char *reason, std::size_t size) {
    return told(reason, size, [](Recorder &of, std::string &text) { return of.pause(text); });
}

SEEN_BY_PYTHON int holdfast_kernels_flush(int forced, char *reason, std::size_t size) {
    return told(reason, size, [&](Recorder &of, std::string &text) { return of.flush(forced != 0, text); });
}

SEEN_BY_PYTHON int holdfast_kernels_detach(char *reason, std::size_t size) {
    return told(reason, size, [](Recorder &of, std::string &text) { return of.detach(text); });
}

SEEN_BY_PYTHON int holdfast_kernels_take(holdfast::Window *window, char *reason, std::size_t size) {
    return told(reason, size, [&](Recorder &of, std::string &text) { return of.take(*window, text); });
}

SEEN_BY_PYTHON std::uint64_t holdfast_kernels_times_left() { return Recorder::of_this_process().times_left(); }

SEEN_BY_PYTHON std::uint64_t holdfast_kernels_buffers_out() { return Recorder::of_this_process().buffers_out(); }
