// Future of a submitted call. Included by hotlease/hotlease.hpp.
#ifndef HOTLEASE_CLIENT_FUTURE_HPP
#define HOTLEASE_CLIENT_FUTURE_HPP

#include <hotlease/client/result.hpp>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <utility>
#include <variant>

namespace hotlease {

// Outcome of a call: a result or an error.
template <class Result>
class outcome {
public:
    explicit outcome(Result result) : value_(std::move(result)) {}
    explicit outcome(error failure) : value_(std::move(failure)) {}

    bool failed() const noexcept { return std::holds_alternative<error>(value_); }
    // Returns the result; throws the hotlease::error if the call failed.
    Result get()
    {
        if (failed())
            throw std::get<error>(value_);
        return std::get<Result>(std::move(value_));
    }

private:
    std::variant<Result, error> value_;
};

// Result of a submitted call, with the members of std::future. `Result` is the type that get() returns: T,
// std::vector<T>, or for a call on buffers the number of elements written.
//
// Destroying a future discards the result; the function still runs.
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
        must_be_valid();
        const auto fetch = [this](void* out, std::size_t capacity) {
            std::size_t size = 0;
            detail::check([&](hotlease_error** failure) {
                return hotlease_wait(handle_.release(), out, capacity, &size, failure);
            });
            return size;
        };
        return detail::result<Form>::from(fetch, capacity_);
    }

    // Calls `callback` with the outcome<Result>, exactly once, on a thread of the library (or on this thread, if the
    // call has ended already). The callback should be brief, must not wait for another call, and must not throw. The
    // future is invalid afterwards.
    template <std::invocable<outcome<Result>> Callback>
    void then(Callback callback)
    {
        must_be_valid();
        auto kept = std::make_unique<Callback>(std::move(callback));
        detail::check([&](hotlease_error** failure) {
            return hotlease_then(handle_.release(), deliver<Callback>, kept.get(), failure);
        });
        kept.release(); // deliver owns it
    }

private:
    friend class function;

    void must_be_valid() const
    {
        detail::alive(handle_.get(), "hotlease::future has no call: its result was taken already, or it was "
                                     "moved from");
    }
    template <class Callback>
    static void deliver(void* user, hotlease_status, const void* out, std::size_t size,
                        const hotlease_error* failure) noexcept
    {
        const std::unique_ptr<Callback> callback(static_cast<Callback*>(user));
        std::invoke(std::move(*callback), ended(out, size, failure));
    }
    static outcome<Result> ended(const void* out, std::size_t size, const hotlease_error* failure)
    {
        if (failure != nullptr)
            return outcome<Result>(error(failure));
        const auto fetch = [&](void* to, std::size_t capacity) {
            if (const std::size_t copied = std::min(size, capacity); copied > 0 && out != nullptr)
                std::memcpy(to, out, copied);
            return size;
        };
        try {
            return outcome<Result>(detail::result<Form>::from(fetch, size));
        } catch (const error& unsuitable) {
            return outcome<Result>(unsuitable);
        }
    }

    future(hotlease_invocation* handle, std::size_t capacity) : handle_(handle), capacity_(capacity) {}
    detail::unique<hotlease_invocation, hotlease_invocation_free> handle_;
    std::size_t capacity_ = 0;
};

} // namespace hotlease

#endif
