// Functions for the tests of the bindings.

#include <hotlease/function.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

// Returns its input.
HOTLEASE_FUNCTION(echo)
{
    (void)context;
    if (size > 0 && size <= capacity)
        std::memcpy(out, in, size);
    *produced = size;
    return 0;
}

// Returns its input, with the plain interface.
HOTLEASE_PLAIN_FUNCTION(plain_echo)
{
    std::memcpy(out, in, size);
    return size;
}

// Adds 1 to each 32-bit number.
HOTLEASE_FUNCTION(increment)
{
    (void)context;
    if (size > capacity) {
        *produced = size;
        return 0;
    }
    for (std::uint64_t i = 0; i < size / 4; ++i)
        static_cast<std::uint32_t*>(out)[i] = static_cast<const std::uint32_t*>(in)[i] + 1;
    *produced = size;
    return 0;
}

// Returns the distance of its input and output from a multiple of 64 bytes.
HOTLEASE_FUNCTION(alignment)
{
    (void)context, (void)size;
    const std::uint32_t off[] = {static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(in) % 64),
                                 static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(out) % 64)};
    if (capacity >= sizeof off)
        std::memcpy(out, off, sizeof off);
    *produced = sizeof off;
    return 0;
}

// Runs for the number of milliseconds in its input, unless it is cancelled.
HOTLEASE_FUNCTION(wait_ms)
{
    std::uint32_t ms = 0;
    std::memcpy(&ms, in, size < sizeof ms ? size : sizeof ms);
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
    while (std::chrono::steady_clock::now() < end) {
        if (hotlease_cancelled(context))
            return hotlease_fail(2, "cancelled", out, capacity, produced);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return 0;
}

// Fails with number 7, or succeeds if its input begins with "ok".
HOTLEASE_FUNCTION(fail)
{
    (void)context;
    if (size >= 2 && std::memcmp(in, "ok", 2) == 0)
        return 0;
    return hotlease_fail(7, "as asked", out, capacity, produced);
}

// Checks that its context is as function.h promises.
HOTLEASE_FUNCTION(check_context)
{
    (void)in, (void)size;
    const char* wrong = nullptr;
    if (context->struct_size != sizeof(hotlease_context))
        wrong = "struct_size";
    else if (context->slots == 0 || context->slot >= context->slots)
        wrong = "slot";
    else if (context->tenant == nullptr || std::strncmp(context->tenant, "uid:", 4) != 0)
        wrong = "tenant";
    else if (context->cancelled == nullptr || *context->cancelled != 0)
        wrong = "cancelled";
    else if (context->state == nullptr || *context->state != nullptr)
        wrong = "state";
    else if (context->scratch == nullptr || reinterpret_cast<std::uintptr_t>(context->scratch) % 64 != 0)
        wrong = "scratch";
    else if (context->scratch_bytes != 65536)
        wrong = "scratch_bytes";
    else if (context->communicator != nullptr)
        wrong = "communicator";
    else if (context->reserved != 0)
        wrong = "reserved";
    else if (*produced != 0)
        wrong = "produced";
    if (wrong != nullptr)
        return hotlease_fail(1, wrong, out, capacity, produced);
    std::memset(context->scratch, 1, context->scratch_bytes);
    return 0;
}

// TEST_VARIABLE when this library was loaded. Not a std::string, whose destructor would be one more exported function.
static char at_load[64];
static const bool is_read = [] {
    const char* value = std::getenv("TEST_VARIABLE");
    std::strncpy(at_load, value == nullptr ? "" : value, sizeof at_load - 1);
    return true;
}();

// Returns the value that TEST_VARIABLE had when this library was loaded.
HOTLEASE_FUNCTION(variable)
{
    (void)context, (void)in, (void)size, (void)is_read;
    *produced = std::strlen(at_load);
    if (*produced <= capacity)
        std::memcpy(out, at_load, *produced);
    return 0;
}

// Counts its calls, also those of earlier workers of its state.
static std::uint64_t visited;

HOTLEASE_FUNCTION(visits)
{
    (void)context, (void)in, (void)size;
    if (capacity < sizeof visited)
        return hotlease_fail(1, "no room", out, capacity, produced);
    ++visited;
    std::memcpy(out, &visited, sizeof visited);
    *produced = sizeof visited;
    return 0;
}

HOTLEASE_STATE_SAVE(visits)
{
    return hotlease_state_write(state, &visited, sizeof visited);
}

HOTLEASE_STATE_RESTORE(visits)
{
    return hotlease_state_read(state, &visited, sizeof visited);
}
