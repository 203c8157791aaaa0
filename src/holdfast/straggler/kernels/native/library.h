// Finding CUPTI and the CUDA driver at run time. Nothing is linked.
//
// What always holds: opening calls no function of either library, because some versions of CUPTI crash in the first
// call on a machine without a working driver. `driver_works` is the gate before the first call.
#pragma once

#include <string>

#include "cupti_abi.h"

namespace holdfast {

// Fills in the functions. With `loaded_only`, only a copy that the process has already. False with the reason.
bool open_cupti(const char *path, bool loaded_only, cupti::Functions &functions, std::string &reason);

// Whether the driver's library is there. Loads it, and calls nothing.
bool driver_is_there(std::string &reason);

// Whether the driver works and there is a device. Calls cuInit: for processes that use CUDA already.
bool driver_works(std::string &reason);

}  // namespace holdfast
