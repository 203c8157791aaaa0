#include "library.h"

#include <dlfcn.h>

#include <initializer_list>
#include <utility>

namespace holdfast {
namespace {

constexpr char DRIVER[] = "libcuda.so.1";

std::string last_error() {
    const char *text = dlerror();
    return text ? text : "no reason given";
}

template <typename Function>
bool look_up(void *library, const char *name, Function &function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    return function != nullptr;
}

}  // namespace

bool open_cupti(const char *path, bool loaded_only, cupti::Functions &functions, std::string &reason) {
    void *library = dlopen(path, RTLD_LAZY | RTLD_LOCAL | (loaded_only ? RTLD_NOLOAD : 0));
    if (library == nullptr) {
        reason = loaded_only ? std::string(path) + " is not loaded" : last_error();
        return false;
    }
    cupti::Functions found{};
    const char *missing = nullptr;
    const auto need = [&](const char *name, auto &function) {
        if (!look_up(library, name, function) && missing == nullptr) missing = name;
    };
    need("cuptiGetVersion", found.GetVersion);
    need("cuptiGetResultString", found.GetResultString);
    need("cuptiActivityRegisterCallbacks", found.ActivityRegisterCallbacks);
    need("cuptiActivityEnable", found.ActivityEnable);
    need("cuptiActivityDisable", found.ActivityDisable);
    need("cuptiActivityFlushAll", found.ActivityFlushAll);
    need("cuptiActivityGetNextRecord", found.ActivityGetNextRecord);
    need("cuptiActivityGetNumDroppedRecords", found.ActivityGetNumDroppedRecords);
    need("cuptiFinalize", found.Finalize);
    need("cuptiSubscribe", found.Subscribe);
    need("cuptiUnsubscribe", found.Unsubscribe);
    need("cuptiEnableDomain", found.EnableDomain);
    if (missing != nullptr) {
        reason = std::string(path) + " has no " + missing;
        dlclose(library);
        return false;
    }
    functions = found;
    return true;
}

bool driver_is_there(std::string &reason) {
    if (dlopen(DRIVER, RTLD_LAZY | RTLD_LOCAL) != nullptr) return true;
    reason = last_error();
    return false;
}

bool driver_works(std::string &reason) {
    void *library = dlopen(DRIVER, RTLD_LAZY | RTLD_LOCAL);
    int (*initialise)(unsigned) = nullptr;
    int (*count_devices)(int *) = nullptr;
    if (library == nullptr) {
        reason = last_error();
        return false;
    }
    if (!look_up(library, "cuInit", initialise) || !look_up(library, "cuDeviceGetCount", count_devices)) {
        reason = std::string(DRIVER) + " has no cuInit or cuDeviceGetCount";
        return false;
    }
    int devices = 0;
    if (const int error = initialise(0)) {
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

}  // namespace holdfast
