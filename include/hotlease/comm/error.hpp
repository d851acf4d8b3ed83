// Exceptions of communicators. Included by hotlease/communicator.hpp.
#ifndef HOTLEASE_COMM_ERROR_HPP
#define HOTLEASE_COMM_ERROR_HPP

#include <hotlease/client/error.hpp>
#include <hotlease/communicator.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace hotlease {

// A failure in message passing; what() says which operation failed, which rank it is about, why, and what to do next.
class communication_error : public error {
public:
    explicit communication_error(const hotlease_error* from)
        : error(from), rank_(hotlease_error_rank(from)), cause_(hotlease_error_cause(from))
    {
    }
    communication_error(hotlease::kind kind, const std::string& message) : error(kind, ran::no, message) {}

    // Rank of the member that failed, left, or sent data that does not match; std::nullopt if the error is about no
    // member.
    std::optional<std::uint32_t> rank() const noexcept
    {
        return rank_ < 0 ? std::nullopt : std::optional(static_cast<std::uint32_t>(rank_));
    }
    // Cause of the error, "its connection was closed: its process has ended" for instance; empty if there is no
    // separate cause.
    const std::string& cause() const noexcept { return cause_; }

private:
    std::int64_t rank_ = -1;
    std::string cause_;
};

// A member has failed: rank() says which, cause() why. Continue with communicator::shrink.
struct member_lost : communication_error {
    using communication_error::communication_error;
};
// A member has finished, and takes part no longer.
struct member_left : communication_error {
    using communication_error::communication_error;
};
// The other members have declared this member failed.
struct outcast : communication_error {
    using communication_error::communication_error;
};
// Ranks called a collective with different arguments, or the collective failed at rank(): no later collective of the
// communicator succeeds.
struct mismatch : communication_error {
    using communication_error::communication_error;
};
// Members are missing at the join, or a rank or the size conflicts with another member's; cause() says which.
struct not_together : communication_error {
    using communication_error::communication_error;
};
// A message is longer than the receive buffer: it has needed() bytes, and can still be received into a larger buffer.
struct truncated : communication_error {
    using communication_error::communication_error;
};
// The operation was cancelled.
struct cancelled : communication_error {
    using communication_error::communication_error;
};

namespace detail {

[[noreturn]] inline void raise_communication(hotlease_error* from)
{
    const unique<hotlease_error, hotlease_error_free> owned(from);
    switch (hotlease_error_status(from)) {
    case HOTLEASE_MEMBER_LOST:
        throw member_lost(from);
    case HOTLEASE_MEMBER_LEFT:
        throw member_left(from);
    case HOTLEASE_OUTCAST:
        throw outcast(from);
    case HOTLEASE_MISMATCH:
        throw mismatch(from);
    case HOTLEASE_NOT_TOGETHER:
        throw not_together(from);
    case HOTLEASE_OUTPUT_TOO_LARGE:
        throw truncated(from);
    case HOTLEASE_CANCELLED:
        throw cancelled(from);
    default:
        throw communication_error(from);
    }
}

// First exception of an operator of the program; the collective that used the operator rethrows it.
class thrown {
public:
    void keep(std::exception_ptr exception) noexcept
    {
        const std::lock_guard guard(mutex_);
        if (!first_)
            first_ = std::move(exception);
    }
    void rethrow() const
    {
        const std::lock_guard guard(mutex_);
        if (first_)
            std::rethrow_exception(first_);
    }

private:
    mutable std::mutex mutex_;
    std::exception_ptr first_;
};

// Calls a function of communicator.h with an error to fill in. If the function failed, throws the exception of the
// program's operator, or else the error.
template <class Call>
void communicate(Call&& call, const thrown* by_operator = nullptr)
{
    hotlease_error* failure = nullptr;
    if (call(&failure) == HOTLEASE_OK) [[likely]]
        return;
    unique<hotlease_error, hotlease_error_free> owned(failure);
    if (by_operator != nullptr)
        by_operator->rethrow();
    raise_communication(owned.release());
}

inline void demand(bool is_so, const char* otherwise)
{
    if (!is_so) [[unlikely]]
        throw communication_error(kind::invalid_argument, std::string("hotlease::") + otherwise);
}

} // namespace detail

} // namespace hotlease

#endif
