// The result of a call that was submitted. Included by hotlease/hotlease.hpp.
#ifndef HOTLEASE_CLIENT_FUTURE_HPP
#define HOTLEASE_CLIENT_FUTURE_HPP

#include <hotlease/client/result.hpp>

#include <chrono>
#include <cstdint>
#include <future>

namespace hotlease {

// The result of a call that was submitted, with the members of std::future. `Result` is what get() gives:
// T, std::vector<T>, or for a call on buffers the number of elements written.
//
// Destroying a future gives up interest in the result; the function runs all the same.
template <class Result, class Form = Result>
class future {
public:
    future() = default;

    bool valid() const noexcept { return handle_ != nullptr; }
    bool is_ready() const noexcept { return hotlease_is_done(handle_.get()) != 0; }
    void wait() const { hotlease_wait_for(handle_.get(), UINT64_MAX); }

    template <class Rep, class Period>
    std::future_status wait_for(std::chrono::duration<Rep, Period> time) const
    {
        using std::chrono::microseconds;
        const auto us = std::chrono::ceil<microseconds>(time);
        const std::uint64_t at_most = us > microseconds::zero() ? static_cast<std::uint64_t>(us.count()) : 0;
        const bool ready = hotlease_wait_for(handle_.get(), at_most) != 0;
        return ready ? std::future_status::ready : std::future_status::timeout;
    }
    template <class Clock, class Duration>
    std::future_status wait_until(std::chrono::time_point<Clock, Duration> time) const
    {
        return wait_for(time - Clock::now());
    }

    // Waits for the result; throws hotlease::error if the call failed. The future is invalid afterwards.
    Result get()
    {
        const auto fetch = [this](void* out, std::size_t capacity) {
            std::size_t size = 0;
            detail::check([&](hotlease_error** failure) {
                return hotlease_wait(handle_.release(), out, capacity, &size, failure);
            });
            return size;
        };
        return detail::result<Form>::from(fetch, capacity_);
    }

private:
    friend class function;
    future(hotlease_invocation* handle, std::size_t capacity) : handle_(handle), capacity_(capacity) {}
    detail::unique<hotlease_invocation, hotlease_invocation_free> handle_;
    std::size_t capacity_ = 0;
};

} // namespace hotlease

#endif
