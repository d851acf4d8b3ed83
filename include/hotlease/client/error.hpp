// Exceptions of the client library. Included by hotlease/hotlease.hpp.
#ifndef HOTLEASE_CLIENT_ERROR_HPP
#define HOTLEASE_CLIENT_ERROR_HPP

#include <hotlease/hotlease.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace hotlease {

// Kind of a failure; explained at hotlease_status in hotlease.h.
enum class kind {
    function_failed = HOTLEASE_FUNCTION_FAILED,
    output_too_large = HOTLEASE_OUTPUT_TOO_LARGE,
    deadline_exceeded = HOTLEASE_DEADLINE_EXCEEDED,
    busy = HOTLEASE_BUSY,
    invalid_argument = HOTLEASE_INVALID_ARGUMENT,
    cancelled = HOTLEASE_CANCELLED,
    operator_failed = HOTLEASE_OPERATOR_FAILED,
    code_rejected = HOTLEASE_CODE_REJECTED,
    unknown_function = HOTLEASE_UNKNOWN_FUNCTION,
    worker_died = HOTLEASE_WORKER_DIED,
    outcome_unknown = HOTLEASE_OUTCOME_UNKNOWN,
    lease_ended = HOTLEASE_LEASE_ENDED,
    memory_lost = HOTLEASE_MEMORY_LOST,
    member_lost = HOTLEASE_MEMBER_LOST,
    member_left = HOTLEASE_MEMBER_LEFT,
    outcast = HOTLEASE_OUTCAST,
    mismatch = HOTLEASE_MISMATCH,
    not_together = HOTLEASE_NOT_TOGETHER,
    not_read = HOTLEASE_NOT_READ,
    finished = HOTLEASE_FINISHED,
    no_capacity = HOTLEASE_NO_CAPACITY,
    refused = HOTLEASE_REFUSED,
    unavailable = HOTLEASE_UNAVAILABLE,
    protocol = HOTLEASE_PROTOCOL,
    local = HOTLEASE_LOCAL,
    internal = HOTLEASE_INTERNAL,
};

// Whether the function of a failed call ran.
enum class ran { no = HOTLEASE_RAN_NO, yes = HOTLEASE_RAN_YES, unknown = HOTLEASE_RAN_UNKNOWN };

class error : public std::runtime_error {
public:
    explicit error(const hotlease_error* from)
        : std::runtime_error(hotlease_error_message(from)),
          kind_(static_cast<hotlease::kind>(hotlease_error_status(from))),
          ran_(static_cast<hotlease::ran>(hotlease_error_ran(from))),
          billed_(hotlease_error_billed(from) != 0), retryable_(hotlease_error_retryable(from) != 0),
          code_(hotlease_error_code(from)), needed_(hotlease_error_needed(from))
    {
    }
    error(hotlease::kind kind, hotlease::ran ran, const std::string& message)
        : std::runtime_error(message), kind_(kind), ran_(ran), billed_(ran != hotlease::ran::no)
    {
    }

    hotlease::kind kind() const noexcept { return kind_; }
    hotlease::ran ran() const noexcept { return ran_; }
    // Whether the time of the failed call is billed.
    bool billed() const noexcept { return billed_; }
    // Whether the same call may succeed if repeated, without the risk that the function runs twice.
    bool retryable() const noexcept { return retryable_; }
    // kind::function_failed: the number that the function returned.
    std::int32_t code() const noexcept { return code_; }
    // kind::output_too_large: number of bytes that the result or the message needs.
    std::uint64_t needed() const noexcept { return needed_; }

private:
    hotlease::kind kind_;
    hotlease::ran ran_;
    bool billed_;
    bool retryable_ = false;
    std::int32_t code_ = 0;
    std::uint64_t needed_ = 0;
};

namespace detail {

template <auto Free>
struct freed_by {
    template <class Handle>
    void operator()(Handle* handle) const noexcept
    {
        Free(handle);
    }
};
template <class Handle, auto Free>
using unique = std::unique_ptr<Handle, freed_by<Free>>;

[[noreturn]] inline void raise(hotlease_error* from)
{
    const unique<hotlease_error, hotlease_error_free> owned(from);
    throw error(from);
}

// Calls a function of hotlease.h with an error to fill in, and throws this error if the function failed.
template <class Call>
void check(Call&& call)
{
    hotlease_error* failure = nullptr;
    if (call(&failure) != HOTLEASE_OK) [[unlikely]]
        raise(failure);
}

// Throws if an object was moved from; `otherwise` describes the object.
inline void alive(const void* handle, const char* otherwise)
{
    if (handle == nullptr) [[unlikely]]
        throw error(kind::invalid_argument, ran::no, std::string("this ") + otherwise);
}

} // namespace detail

} // namespace hotlease

#endif
