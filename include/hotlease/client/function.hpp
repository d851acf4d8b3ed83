// A function that can be called. Included by hotlease/hotlease.hpp.
#ifndef HOTLEASE_CLIENT_FUNCTION_HPP
#define HOTLEASE_CLIENT_FUNCTION_HPP

#include <hotlease/client/buffer.hpp>
#include <hotlease/client/future.hpp>

#include <chrono>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace hotlease {

// How to call a function.
struct function_options {
    std::chrono::microseconds timeout = std::chrono::microseconds::zero(); // zero: that of the lease
    std::size_t output_bytes = 0; // most output of a call, unless in a buffer; 0: reply_bytes of the lease
    std::optional<bool> idempotent = std::nullopt; // may it be run twice? Unless given, as declared
};

// A function on the workers of a lease. Look it up once and call it often. Copies are cheap.
class function {
public:
    // Calls the function on `in` and waits. Without any allocation: the result goes to `out`, and how many
    // elements of it were written is returned.
    template <plain_range In, std::ranges::contiguous_range Out>
        requires plain<std::ranges::range_value_t<Out>>
    std::size_t call_into(const In& in, Out&& out) const
    {
        using R = std::ranges::range_value_t<Out>;
        std::size_t bytes = 0;
        detail::check([&](hotlease_error** failure) {
            return hotlease_invoke(handle_.get(), std::ranges::data(in), size_bytes(in),
                                   std::ranges::data(out), std::ranges::size(out) * sizeof(R), &bytes,
                                   failure);
        });
        return detail::elements<R>(bytes);
    }

    // Calls the function on a range of values; gives a vector of R, as long as what it wrote.
    template <plain R, plain_range In>
    std::vector<R> call(const In& in) const
    {
        std::vector<R> out(output_bytes() / sizeof(R));
        out.resize(call_into(in, out));
        return out;
    }
    template <plain R, plain T>
    std::vector<R> call(std::initializer_list<T> in) const
    {
        return call<R>(std::span<const T>(in.begin(), in.size()));
    }

    // Calls the function on one value; gives one R.
    template <plain R, plain T>
    R call_value(const T& in) const
    {
        return detail::result<R>::from(
            [&](void* out, std::size_t capacity) {
                std::size_t bytes = 0;
                detail::check([&](hotlease_error** failure) {
                    return hotlease_invoke(handle_.get(), &in, sizeof in, out, capacity, &bytes, failure);
                });
                return bytes;
            },
            0);
    }

    // Calls the function on parts of buffers, in place; gives the number of elements written.
    template <plain T, plain R>
    std::size_t call(part<T> in, part<R> out) const
    {
        std::size_t bytes = 0;
        detail::check([&](hotlease_error** failure) {
            return hotlease_invoke_buffers(handle_.get(), in.range(), out.range(), &bytes, failure);
        });
        return detail::elements<R>(bytes);
    }
    // The same on the first `count` elements of `in`, to the beginning of `out`.
    template <plain T, plain R>
    std::size_t call(const buffer<T>& in, std::size_t count, buffer<R>& out) const
    {
        return call(in.part(0, count), out.part());
    }

    // The same calls, started: get() of the future gives the result.
    template <plain R, plain_range In>
    future<std::vector<R>> submit(const In& in) const
    {
        return {start(std::ranges::data(in), size_bytes(in)), output_bytes()};
    }
    template <plain R, plain T>
    future<R> submit_value(const T& in) const
    {
        return {start(&in, sizeof in), sizeof(R)};
    }
    template <plain T, plain R>
    future<std::size_t, detail::in_buffer<R>> submit(part<T> in, part<R> out) const
    {
        hotlease_invocation* started = nullptr;
        detail::check([&](hotlease_error** failure) {
            return hotlease_submit_buffers(handle_.get(), in.range(), out.range(), &started, failure);
        });
        return {started, 0};
    }
    template <plain T, plain R>
    future<std::size_t, detail::in_buffer<R>> submit(const buffer<T>& in, std::size_t count,
                                                     buffer<R>& out) const
    {
        return submit(in.part(0, count), out.part());
    }

    // Calls the function once for each value of `items`, on all slots; the results are in the same order.
    // If any call fails, the error of the first is thrown after all have ended.
    template <plain R, plain_range Items>
    std::vector<R> map(const Items& items) const
    {
        using T = std::ranges::range_value_t<Items>;
        const std::size_t count = std::ranges::size(items);
        std::vector<R> results(count);
        std::vector<hotlease_item> calls(count);
        for (std::size_t i = 0; i < count; ++i)
            calls[i] = {std::ranges::data(items) + i, sizeof(T), &results[i], sizeof(R), 0, HOTLEASE_OK};
        run(calls);
        for (const hotlease_item& call : calls)
            if (call.out_size != sizeof(R))
                (void)detail::result<R>::from([&](void*, std::size_t) { return call.out_size; }, 0);
        return results;
    }
    // The same where each item is a range of values, and each result a vector.
    template <plain R, std::ranges::random_access_range Items>
        requires plain_range<std::ranges::range_value_t<Items>> && (!plain_range<Items>)
    std::vector<std::vector<R>> map(const Items& items) const
    {
        const auto count = static_cast<std::size_t>(std::ranges::size(items));
        std::vector<std::vector<R>> results(count, std::vector<R>(output_bytes() / sizeof(R)));
        std::vector<hotlease_item> calls(count);
        for (std::size_t i = 0; i < count; ++i) {
            const auto& item = std::ranges::begin(items)[static_cast<std::ptrdiff_t>(i)];
            std::vector<R>& result = results[i];
            calls[i] = {std::ranges::data(item), size_bytes(item), result.data(),
                        result.size() * sizeof(R), 0, HOTLEASE_OK};
        }
        run(calls);
        for (std::size_t i = 0; i < count; ++i)
            results[i].resize(detail::elements<R>(calls[i].out_size));
        return results;
    }

    // The largest result outside of buffers.
    std::size_t output_bytes() const noexcept { return hotlease_function_output_bytes(handle_.get()); }
    const hotlease_function* handle() const noexcept { return handle_.get(); }

private:
    friend class invoker;
    explicit function(hotlease_function* handle) : handle_(handle, hotlease_function_free) {}

    template <plain_range Range>
    static std::size_t size_bytes(const Range& range)
    {
        return std::ranges::size(range) * sizeof(std::ranges::range_value_t<Range>);
    }
    hotlease_invocation* start(const void* in, std::size_t size) const
    {
        hotlease_invocation* started = nullptr;
        detail::check([&](hotlease_error** failure) {
            return hotlease_submit(handle_.get(), in, size, &started, failure);
        });
        return started;
    }
    void run(std::vector<hotlease_item>& calls) const
    {
        detail::check([&](hotlease_error** failure) {
            return hotlease_map(handle_.get(), calls.data(), calls.size(), failure);
        });
    }

    std::shared_ptr<hotlease_function> handle_;
};

} // namespace hotlease

#endif
