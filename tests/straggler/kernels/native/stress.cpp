// The kernel core in one program with the fake libcupti, for sanitizers: threads launch while others take, let CUPTI
// leave, fork, and lose the callbacks to another tool.
//
// `stress libcupti rounds`: ends with 0 and one line of what it counted, or says what was wrong.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "fake_cupti.h"

extern "C" {
struct Window {
    const void *rows;
    std::uint64_t count, measured, untimed, unmeasured, dropped, foreign;
};
int holdfast_kernels_open(const char *, int, char *, std::size_t);
int holdfast_kernels_attach(char *, std::size_t);
int holdfast_kernels_pause(char *, std::size_t);
int holdfast_kernels_flush(int, char *, std::size_t);
int holdfast_kernels_detach(char *, std::size_t);
int holdfast_kernels_take(Window *, char *, std::size_t);
std::uint64_t holdfast_kernels_times_left();
}

namespace {

constexpr int THREADS = 3;
constexpr int CALLERS = 2;
constexpr int UNKNOWN = 999;  // an error of CUPTI
constexpr long LAUNCHES = 20000;  // of each thread in each round
char reason[1000];
std::vector<std::string> texts;
std::vector<const char *> names;
Window total{};

struct Gpu {
    decltype(&fake_launch_many) launch_many;
    decltype(&fake_launch) launch;
    decltype(&fake_finish) finish;
    decltype(&fake_cuda_call) cuda_call;
    decltype(&fake_other_tool) other_tool;
    decltype(&fake_fail) fail;
    decltype(&fake_after) after;
    decltype(&fake_subscribed) subscribed;
} gpu;

void must(bool held, const char *what) {
    if (held) return;
    std::fprintf(stderr, "stress: %s does not hold: %s\n", what, reason);
    std::exit(1);
}
#define MUST(condition) must(condition, #condition)

void take() {
    Window window{};
    MUST(holdfast_kernels_take(&window, reason, sizeof reason));
    total.measured += window.measured;
    total.untimed += window.untimed;
    total.unmeasured += window.unmeasured;
    total.foreign += window.foreign;
}

void flush(int forced) { MUST(holdfast_kernels_flush(forced, reason, sizeof reason)); }

// Threads launch all the while, and call CUDA; `meanwhile` runs until they are done. How many were recorded.
template <typename Meanwhile>
std::uint64_t launching(Meanwhile meanwhile) {
    std::atomic<std::uint64_t> recorded{0};
    std::atomic<int> busy{THREADS};
    std::vector<std::thread> threads;
    for (int thread = 0; thread < THREADS; ++thread) {
        threads.emplace_back([&, thread] {
            for (long done = 0; done < LAUNCHES; done += 500) {
                recorded += static_cast<std::uint64_t>(
                    gpu.launch_many(names.data(), static_cast<int>(names.size()), 499, 1000));
                const fake_kernel kernel{names[0], 1, 0, {static_cast<std::int32_t>(done), thread, 1}, {32, 1, 1}};
                recorded += gpu.launch(&kernel) == 1;
                gpu.cuda_call();
            }
            --busy;
        });
    }
    while (busy.load() != 0) meanwhile();
    for (std::thread &thread : threads) thread.join();
    return recorded.load();
}

// Threads that only call CUDA, as those that pin memory do: CUPTI leaves in the middle of what this thread does.
class Callers {
  public:
    Callers() {
        for (int caller = 0; caller < CALLERS; ++caller)
            threads_.emplace_back([this] {
                while (!done_.load()) {
                    if (calling_.load()) {
                        gpu.cuda_call();
                        ++calls_;
                    }
                    std::this_thread::yield();
                }
            });
    }
    ~Callers() {
        done_.store(true);
        for (std::thread &thread : threads_) thread.join();
    }
    void call(bool calling) { calling_.store(calling); }
    // One more call than can have begun before: at least one began now.
    static void wait_for_a_call() {
        const long seen = calls_.load();
        while (calls_.load() <= seen + CALLERS) std::this_thread::yield();
    }

  private:
    static inline std::atomic<long> calls_{0};
    std::atomic<bool> done_{false}, calling_{false};
    std::vector<std::thread> threads_;
};

void nothing_is_lost() {
    const Window before = total;
    int times = 0;
    const std::uint64_t recorded = launching([&] {
        // Seldom, so that buffers fill up and the threads that filled them count while this one takes.
        if (++times % 64 == 0) flush(0);
        gpu.finish();
        for (int often = 0; often < 8; ++often) take();
    });
    gpu.finish();
    flush(0);
    take();
    MUST(total.measured + total.unmeasured - before.measured - before.unmeasured == recorded);
    MUST(total.untimed == before.untimed);
}

void cupti_comes_and_goes() {
    int times = 0;
    Callers callers;
    const auto comes_and_goes = [&] {
        if (!holdfast_kernels_attach(reason, sizeof reason)) return;  // it is just leaving
        gpu.finish();
        holdfast_kernels_pause(reason, sizeof reason);
        holdfast_kernels_flush(1, reason, sizeof reason);
        const bool called = ++times % 2 == 1;  // else it is wanted again before it left, or another thread was faster
        callers.call(called);
        gpu.after(DOMAIN_ON, called ? Callers::wait_for_a_call : nullptr);
        if (times % 5 == 0) gpu.after(DOMAIN_ON, [] { gpu.fail(DOMAIN_ON, UNKNOWN, 1); });  // the second of the two
        holdfast_kernels_detach(reason, sizeof reason);
        if (called) gpu.cuda_call();
        take();
    };
    launching(comes_and_goes);  // seldom: this thread must wait for those that launch
    for (int often = 0; often < 20; ++often) comes_and_goes();
    gpu.after(DOMAIN_ON, nullptr);
    gpu.fail(DOMAIN_ON, 0, 0);
    while (!holdfast_kernels_attach(reason, sizeof reason)) gpu.cuda_call();
}

// The last thing: it is not asked again after that.
void cupti_would_not_leave() {
    gpu.fail(FINALIZE, UNKNOWN, 1);
    {
        Callers callers;
        callers.call(true);
        launching([] {
            holdfast_kernels_attach(reason, sizeof reason);
            holdfast_kernels_detach(reason, sizeof reason);
        });
    }
    gpu.cuda_call();
    MUST(!holdfast_kernels_detach(reason, sizeof reason) && std::strstr(reason, "cuptiFinalize failed") == reason);
    MUST(!gpu.subscribed() && holdfast_kernels_attach(reason, sizeof reason));
    gpu.finish();
    flush(1);
    take();
}

void another_tool_comes_and_goes() {
    launching([] {
        gpu.other_tool();
        gpu.finish();
        flush(0);
        MUST(holdfast_kernels_attach(reason, sizeof reason));
        flush(0);
        take();
    });
    gpu.finish();
    flush(1);
    take();
}

void a_child_is_forked() {
    launching([] {
        const pid_t child = fork();
        if (child == 0) {
            Window window{};
            const bool quiet = !holdfast_kernels_attach(reason, sizeof reason) &&
                               !holdfast_kernels_flush(0, reason, sizeof reason) &&
                               !holdfast_kernels_take(&window, reason, sizeof reason);
            _exit(quiet ? 0 : 1);
        }
        int status = 1;
        MUST(waitpid(child, &status, 0) == child && status == 0);
    });
    gpu.finish();
    flush(0);
    take();
}

template <typename Function>
void look_up(void *library, const char *name, Function &function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    MUST(function != nullptr);
}

}  // namespace

int main(int, char **arguments) {
    void *library = dlopen(arguments[1], RTLD_NOW);
    MUST(library != nullptr);
    look_up(library, "fake_launch_many", gpu.launch_many);
    look_up(library, "fake_launch", gpu.launch);
    look_up(library, "fake_finish", gpu.finish);
    look_up(library, "fake_cuda_call", gpu.cuda_call);
    look_up(library, "fake_other_tool", gpu.other_tool);
    look_up(library, "fake_fail", gpu.fail);
    look_up(library, "fake_after", gpu.after);
    look_up(library, "fake_subscribed", gpu.subscribed);
    for (int i = 0; i < 200; ++i) texts.push_back("_Z6kernelILi" + std::to_string(i) + "EEvPf");
    for (const std::string &text : texts) names.push_back(text.c_str());
    MUST(holdfast_kernels_open(arguments[1], 0, reason, sizeof reason));
    MUST(holdfast_kernels_attach(reason, sizeof reason));
    const int rounds = std::atoi(arguments[2]);
    for (int round = 0; round < rounds; ++round) {
        nothing_is_lost();
        cupti_comes_and_goes();
        another_tool_comes_and_goes();
        a_child_is_forked();
    }
    cupti_would_not_leave();
    std::printf("%llu measured, %llu foreign buffers, CUPTI left %llu times\n",
                static_cast<unsigned long long>(total.measured), static_cast<unsigned long long>(total.foreign),
                static_cast<unsigned long long>(holdfast_kernels_times_left()));
    return 0;
}
