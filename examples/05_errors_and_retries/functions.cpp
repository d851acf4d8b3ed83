// Functions that fail in all possible ways.

#include <hotlease/function.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>

// Returns its own error.
HOTLEASE_FUNCTION(refuse)
{
    (void)context, (void)in, (void)size;
    return hotlease_fail(EDOM, "I only take even numbers", out, capacity, produced);
}

// Has a result that is longer than the capacity of the output.
HOTLEASE_FUNCTION(verbose)
{
    (void)context, (void)in, (void)size;
    constexpr std::uint64_t needed = 100'000;
    if (capacity >= needed)
        std::memset(out, 'x', needed);
    *produced = needed;
    return 0;
}

// Crashes.
HOTLEASE_FUNCTION(crash)
{
    (void)context, (void)in, (void)size, (void)out, (void)capacity, (void)produced;
    (void)!write(2, "about to crash\n", 15);
    std::raise(SIGSEGV);
    return 0;
}

// Never ends by itself, but stops when it is asked to.
HOTLEASE_FUNCTION(endless)
{
    (void)in, (void)size;
    while (!hotlease_cancelled(context))
        continue;
    return hotlease_fail(ECANCELED, "cancelled", out, capacity, produced);
}

// Crashes in its first run, in which the file named in the input does not exist yet. It creates the file before the
// crash, so that the second run succeeds. A second run does no harm, as the marker below declares.
HOTLEASE_FUNCTION(unlucky);
HOTLEASE_IDEMPOTENT(unlucky);

std::int32_t unlucky(hotlease_context*, const void* in, std::uint64_t size, void* out, std::uint64_t capacity,
                     std::uint64_t* produced)
{
    const std::string path(static_cast<const char*>(in), size);
    const int file = open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    if (file >= 0)
        std::raise(SIGKILL);
    if (errno != EEXIST)
        return hotlease_fail(errno, std::strerror(errno), out, capacity, produced);
    constexpr char word[] = "second time lucky";
    if (capacity >= sizeof word - 1)
        std::memcpy(out, word, sizeof word - 1);
    *produced = sizeof word - 1;
    return 0;
}
