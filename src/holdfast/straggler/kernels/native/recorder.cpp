#include "recorder.h"

#include <unistd.h>

#include <cstring>

namespace holdfast {
namespace {
constexpr std::size_t BATCH = 512;  // records found without the lock, then added under it
constexpr auto COUNTS = std::memory_order_relaxed;  // orders nothing: these are sums
}

Recorder &Recorder::of_this_process() {
    static Recorder *const recorder = new Recorder;
    return *recorder;
}

Recorder::Recorder() : process_(getpid()) {}

bool Recorder::belongs_here() const { return getpid() == process_; }

bool Recorder::open(const char *path, bool loaded_only, std::string &reason) {
    if (opened_) return true;  // one copy of CUPTI in a process, whoever asks
    return opened_ = open_cupti(path, loaded_only, cupti_, reason);
}

bool Recorder::ready(std::string &reason) {
    if (!belongs_here()) {
        reason = "this process was forked from one that uses CUPTI";
    } else if (!opened_) {
        reason = "no CUPTI library was opened";
    } else {
        works_ = works_ || driver_works(reason);
        return works_;
    }
    return false;
}

bool Recorder::worked(cupti::Result result, const char *call, std::string &reason) {
    if (result == 0) return true;
    const char *text = nullptr;
    if (cupti_.GetResultString(result, &text) != 0 || text == nullptr) text = "an unknown error";
    reason = std::string(call) + " failed: " + text + " (" + std::to_string(result) + ")";
    return false;
}

bool Recorder::attach(std::string &reason) {
    return ready(reason) && stays(reason) &&
           worked(cupti_.ActivityRegisterCallbacks(on_request, on_complete), "cuptiActivityRegisterCallbacks",
                  reason) &&
           worked(cupti_.ActivityEnable(cupti::CONCURRENT_KERNEL), "cuptiActivityEnable", reason);
}

// Takes back that CUPTI should leave, if there is still time. A subscription that would not end is ended the next time.
bool Recorder::stays(std::string &reason) {
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

bool Recorder::pause(std::string &reason) {
    if (!flush(false, reason)) return false;
    return worked(cupti_.ActivityDisable(cupti::CONCURRENT_KERNEL), "cuptiActivityDisable", reason);
}

bool Recorder::flush(bool forced, std::string &reason) {
    if (!ready(reason)) return false;
    if (!worked(cupti_.ActivityFlushAll(forced ? cupti::FORCED : 0), "cuptiActivityFlushAll", reason)) return false;
    count_dropped(nullptr, 0);
    return true;
}

bool Recorder::detach(std::string &reason) {
    if (!ready(reason)) return false;
    const int leaving = leaving_.load();
    if (leaving == ASKED || leaving == LEAVES) return true;
    if (!stays(reason) || !worked(refused_.load(), "cuptiFinalize", reason)) return false;
    std::uint32_t version = 0;
    if (!worked(cupti_.GetVersion(&version), "cuptiGetVersion", reason)) return false;
    if (version < cupti::LEAVES_SAFELY) {
        reason = "CUPTI before CUDA 12.5 (its version is " + std::to_string(version) + ") may crash when it leaves";
        return false;
    }
    return ask(reason);
}

bool Recorder::ask(std::string &reason) {
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

void Recorder::on_call(void *, std::uint32_t, std::uint32_t, const void *data) {
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

void Recorder::on_request(std::uint8_t **buffer, std::size_t *size, std::size_t *most_records) {
    *most_records = 0;
    *size = 0;
    *buffer = nullptr;
    try {
        *buffer = of_this_process().buffers_.hand_out(size);
    } catch (...) {  // no memory for the list of buffers
    }
}

void Recorder::on_complete(void *context, std::uint32_t stream, std::uint8_t *buffer, std::size_t, std::size_t filled) {
    Recorder &recorder = of_this_process();
    if (!recorder.belongs_here()) return;
    if (!recorder.buffers_.is_out(buffer)) {
        recorder.foreign_.fetch_add(1, COUNTS);
        return;
    }
    recorder.delivered_.fetch_add(1, COUNTS);
    recorder.read(buffer, filled);
    recorder.count_dropped(context, stream);
    recorder.buffers_.come_back(buffer);
}

void Recorder::read(std::uint8_t *buffer, std::size_t filled) {
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

void Recorder::add(const cupti::KernelRecord *const *records, std::size_t count) {
    const std::lock_guard<std::mutex> guard(table_lock_);
    table_.add(records, count);
}

void Recorder::count_dropped(void *context, std::uint32_t stream) {
    std::size_t dropped = 0;
    if (cupti_.ActivityGetNumDroppedRecords(context, stream, &dropped) == 0) dropped_.fetch_add(dropped, COUNTS);
}

void Recorder::take(Rows &rows, Lost &lost) {
    {
        const std::lock_guard<std::mutex> guard(table_lock_);
        table_.take(rows);
    }
    lost.dropped = dropped_.exchange(0, COUNTS);
    lost.foreign = foreign_.exchange(0, COUNTS);
    lost.delivered = delivered_.exchange(0, COUNTS);
}

std::size_t Recorder::buffers_out() { return buffers_.out(); }

}  // namespace holdfast
