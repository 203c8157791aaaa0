// The one recorder of a process: it takes CUPTI's buffers, and attaches CUPTI and lets it go.
//
// What always holds:
// - No function of CUPTI is called before the driver was found to work.
// - No lock is held while CUPTI is called: its callbacks take the locks from threads of its own.
// - CUPTI leaves only when nothing here calls it any more with the subscriber that is gone then.
// - A CUPTI that would not leave is not asked again: each try makes all calls of CUDA run a callback until the next
//   `attach`, and keeps other tools from subscribing.
// - Nothing happens in a forked child: what it inherited belongs to its parent.
// - The recorder is never destroyed: CUPTI's threads may call until the process is gone.
// `attach`, `pause`, `flush`, `detach` and `take` are called by one thread at a time.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "buffers.h"
#include "cupti_abi.h"
#include "kernel_table.h"
#include "library.h"

namespace holdfast {

struct Lost {
    std::uint64_t dropped = 0;   // records that CUPTI had no room for
    std::uint64_t foreign = 0;   // buffers that came back here and are another tool's
    std::uint64_t delivered = 0; // buffers of ours that came back
};

class Recorder {
  public:
    static Recorder &of_this_process();

    bool open(const char *path, bool loaded_only, std::string &reason);
    // Registers the callbacks, whoever had them, and measures from now on.
    bool attach(std::string &reason);
    // Delivers what is complete, and measures no more.
    bool pause(std::string &reason);
    // Delivers what is complete; `forced` also what is not, which then has no times.
    bool flush(bool forced, std::string &reason);
    // CUPTI leaves the process with the end of the next CUDA call of any thread: NVIDIA's advice for doing it safely.
    // False when another tool has subscribed, or CUPTI would not leave the last time: that shows only in that call.
    bool detach(std::string &reason);
    void take(Rows &rows, Lost &lost);
    std::uint64_t times_left() const { return times_left_.load(); }
    std::size_t buffers_out();
    bool belongs_here() const;

  private:
    // SUBSCRIBED: not yet asked to leave, or it would not; the thread of `attach` and `detach` ends that.
    enum Leaving : int { STAYS, SUBSCRIBED, ASKED, LEAVES };

    Recorder();
    static void on_request(std::uint8_t **buffer, std::size_t *size, std::size_t *most_records);
    static void on_complete(void *context, std::uint32_t stream, std::uint8_t *buffer, std::size_t size,
                            std::size_t filled);
    static void on_call(void *user, std::uint32_t domain, std::uint32_t id, const void *data);
    bool ready(std::string &reason);
    bool ask(std::string &reason);
    bool stays(std::string &reason);
    bool worked(cupti::Result result, const char *call, std::string &reason);
    void read(std::uint8_t *buffer, std::size_t filled);
    void add(const cupti::KernelRecord *const *records, std::size_t count);
    void count_dropped(void *context, std::uint32_t stream);

    const int process_;
    cupti::Functions cupti_{};
    bool opened_ = false, works_ = false;
    std::atomic<int> leaving_{STAYS};
    std::atomic<cupti::Result> refused_{0};  // why CUPTI would not leave
    std::atomic<std::uint64_t> times_left_{0}, dropped_{0}, foreign_{0}, delivered_{0};
    void *subscriber_ = nullptr;
    Buffers buffers_;
    std::mutex table_lock_;
    KernelTable table_;
};

}  // namespace holdfast
