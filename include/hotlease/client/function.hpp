// Functions that can be called. Included by hotlease/hotlease.hpp.
#ifndef HOTLEASE_CLIENT_FUNCTION_HPP
#define HOTLEASE_CLIENT_FUNCTION_HPP

#include <hotlease/client/buffer.hpp>
#include <hotlease/client/future.hpp>
#include <hotlease/client/model.hpp>
#include <hotlease/client/pipeline.hpp>

#include <chrono>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#define HOTLEASE_NO_HANDLES_                                                                               \
    "pointers, hotlease::buffer and hotlease::part cannot be sent as values: a worker would get their own "  \
    "bytes, not what they stand for. Pass one buffer or part by itself (call(part), submit(part, part)), "    \
    "several parts to call_parts, or the values"

namespace hotlease {

// Options of a function's calls.
struct function_options {
    std::chrono::microseconds timeout = std::chrono::microseconds::zero(); // zero: the lease's timeout
    std::size_t output_bytes = 0; // limit of a call's output outside of buffers; 0: reply_bytes of the lease
    std::optional<bool> idempotent = std::nullopt; // whether it may run twice; default: as its library declares
};

// A function on the workers of a lease. Look it up once and call it often. Copies are cheap.
class function {
public:
    // Calls the function on `in` and waits, without any allocation. The result is written to `out`; returns the number
    // of elements written. `in` and `out` are ranges of values, which are copied, or buffers or parts of buffers, which
    // the function uses in place.
    template <input In, place Out>
    std::size_t call_into(const In& in, Out&& out) const
    {
        using R = detail::element<Out>;
        std::size_t bytes = 0;
        check([&](hotlease_error** failure) {
            if constexpr (in_place<In> && in_place<Out>)
                return hotlease_invoke_buffers(handle_.get(), range(in), range(out), &bytes, failure);
            else if constexpr (in_place<In>)
                return hotlease_invoke_from_buffer(handle_.get(), range(in), std::ranges::data(out),
                                                   std::ranges::size(out) * sizeof(R), &bytes, failure);
            else if constexpr (in_place<Out>)
                return hotlease_invoke_to_buffer(handle_.get(), std::ranges::data(in), size_bytes(in),
                                                 range(out), &bytes, failure);
            else
                return hotlease_invoke(handle_.get(), std::ranges::data(in), size_bytes(in),
                                       std::ranges::data(out), std::ranges::size(out) * sizeof(R), &bytes,
                                       failure);
        });
        return detail::elements<R>(bytes);
    }

    // Calls the function on values, a buffer or a part; returns its result as a vector of R.
    template <plain R, input In>
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
    // Calls the function with its result in a buffer or a part; returns the number of elements written.
    template <input In, place Out>
        requires in_place<Out>
    std::size_t call(const In& in, Out&& out) const
    {
        return call_into(in, out);
    }
    // Calls the function on the first `count` elements of `in`; the result is written to the beginning of `out`.
    template <plain T, plain R>
    std::size_t call(const buffer<T>& in, std::size_t count, buffer<R>& out) const
    {
        return call_into(in.part(0, count), out);
    }

    // Calls the function on several parts of buffers, which it sees as one input. Its output fills several parts, one
    // after another, which must not overlap. Input and output have up to HOTLEASE_PARTS_MAX parts each. Returns the
    // number of elements written.
    template <range_of_parts In, range_of_parts Out>
    std::size_t call_parts(const In& in, const Out& out) const
    {
        const std::vector<hotlease_range> from = ranges(in), to = ranges(out);
        std::size_t bytes = 0;
        check([&](hotlease_error** failure) {
            return hotlease_invoke_parts(handle_.get(), from.data(), from.size(), to.data(), to.size(), &bytes,
                                         failure);
        });
        return detail::elements<detail::element<std::ranges::range_value_t<Out>>>(bytes);
    }
    template <plain T, plain R>
    std::size_t call_parts(std::initializer_list<part<T>> in, std::initializer_list<part<R>> out) const
    {
        return call_parts(std::span(in.begin(), in.size()), std::span(out.begin(), out.size()));
    }

    // Calls the function on one value; returns one R.
    template <plain R, plain T>
    R call_value(const T& in) const
    {
        return detail::result<R>::from(
            [&](void* out, std::size_t capacity) {
                std::size_t bytes = 0;
                check([&](hotlease_error** failure) {
                    return hotlease_invoke(handle_.get(), &in, sizeof in, out, capacity, &bytes, failure);
                });
                return bytes;
            },
            0);
    }

    // Starts a call with the arguments of `call`; get() of the future returns the result. Do not access memory that the
    // function uses in place until the future is ready.
    template <plain R, input In>
    future<std::vector<R>> submit(const In& in) const
    {
        if constexpr (in_place<In>)
            return {made<hotlease_invocation, hotlease_submit_from_buffer>(range(in)), output_bytes()};
        else
            return {made<hotlease_invocation, hotlease_submit>(std::ranges::data(in), size_bytes(in)),
                    output_bytes()};
    }
    template <plain R, plain T>
    future<R> submit_value(const T& in) const
    {
        return {made<hotlease_invocation, hotlease_submit>(&in, sizeof in), sizeof(R)};
    }
    template <input In, place Out>
        requires in_place<Out>
    future<std::size_t, detail::in_buffer<detail::element<Out>>> submit(const In& in, Out&& out) const
    {
        if constexpr (in_place<In>)
            return {made<hotlease_invocation, hotlease_submit_buffers>(range(in), range(out)), 0};
        else
            return {made<hotlease_invocation, hotlease_submit_to_buffer>(std::ranges::data(in), size_bytes(in),
                                                                         range(out)),
                    0};
    }
    template <plain T, plain R>
    future<std::size_t, detail::in_buffer<R>> submit(const buffer<T>& in, std::size_t count,
                                                     buffer<R>& out) const
    {
        return submit(in.part(0, count), out);
    }

    // As submit, but if every slot has a full queue, returns std::nullopt instead of waiting.
    template <plain R, plain_range In>
    std::optional<future<std::vector<R>>> try_submit(const In& in) const
    {
        if (hotlease_invocation* started = try_start(std::ranges::data(in), size_bytes(in)))
            return future<std::vector<R>>(started, output_bytes());
        return std::nullopt;
    }
    template <plain R, plain T>
    std::optional<future<R>> try_submit_value(const T& in) const
    {
        if (hotlease_invocation* started = try_start(&in, sizeof in))
            return future<R>(started, sizeof(R));
        return std::nullopt;
    }

    // Opens a pipeline: many small calls in flight on one slot; see pipeline.hpp.
    template <plain R, plain T>
    hotlease::pipeline<R, T> pipeline() const
    {
        return hotlease::pipeline<R, T>(made<hotlease_pipeline, hotlease_pipeline_open>());
    }

    // Learns the cost of calls on inputs like `in`, by making 16 to about 400 calls on one slot. So the function must
    // do no harm if it runs more often than its results are needed. See model.hpp.
    template <plain_range In>
    hotlease::model learn(const In& in) const
    {
        return hotlease::model(made<hotlease_model, hotlease_model_learn>(std::ranges::data(in), size_bytes(in)));
    }
    template <plain T>
    hotlease::model learn_value(const T& in) const
    {
        return hotlease::model(made<hotlease_model, hotlease_model_learn>(&in, sizeof in));
    }

    // Common mistakes, with a message at compile time.
    template <class R, range_of_handles In>
    std::vector<R> call(const In&) const
    {
        static_assert(detail::never<R>, HOTLEASE_NO_HANDLES_);
    }
    template <class R, range_of_handles In>
    future<std::vector<R>> submit(const In&) const
    {
        static_assert(detail::never<R>, HOTLEASE_NO_HANDLES_);
    }
    template <class R, range_of_handles In>
    std::vector<R> map(const In&) const
    {
        static_assert(detail::never<R>, HOTLEASE_NO_HANDLES_);
    }
    template <class R, class T>
        requires(detail::stands_for_memory<T>)
    R call_value(const T&) const
    {
        static_assert(detail::never<R>, HOTLEASE_NO_HANDLES_);
    }
    template <class R, class T>
        requires(detail::stands_for_memory<T>)
    future<R> submit_value(const T&) const
    {
        static_assert(detail::never<R>, HOTLEASE_NO_HANDLES_);
    }

    // Calls the function once for each value of `items`, on all slots; the results are in the same order.
    // If calls fail, throws the error of the first failed call after all calls have ended.
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
    // Does the same for items that are ranges of values; each result is a vector.
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

    // Returns this function on one slot only, from 0 to invoker::slots() - 1.
    function on_slot(std::uint32_t slot) const
    {
        return function(made<hotlease_function, hotlease_function_on_slot>(slot));
    }

    // Limit of a result outside of buffers, in bytes.
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
    template <in_place Memory>
    static hotlease_range range(const Memory& memory)
    {
        return memory.range();
    }
    template <range_of_parts Parts>
    static std::vector<hotlease_range> ranges(const Parts& parts)
    {
        std::vector<hotlease_range> found;
        for (const auto& part : parts)
            found.push_back(part.range());
        return found;
    }
    template <class Call>
    void check(Call&& call) const
    {
        detail::alive(handle_.get(), "hotlease::function was moved from");
        detail::check(std::forward<Call>(call));
    }
    // Calls a function of hotlease.h on this function's handle, and returns the object that it makes.
    template <class Object, auto Call, class... Arguments>
    Object* made(Arguments... arguments) const
    {
        Object* object = nullptr;
        check([&](hotlease_error** failure) { return Call(handle_.get(), arguments..., &object, failure); });
        return object;
    }
    // Starts a call; returns NULL if every slot is busy.
    hotlease_invocation* try_start(const void* in, std::size_t size) const
    {
        hotlease_invocation* started = nullptr;
        check([&](hotlease_error** failure) {
            const hotlease_status status = hotlease_try_submit(handle_.get(), in, size, &started, failure);
            if (status != HOTLEASE_BUSY)
                return status;
            hotlease_error_free(*failure);
            return HOTLEASE_OK;
        });
        return started;
    }
    void run(std::vector<hotlease_item>& calls) const
    {
        check([&](hotlease_error** failure) {
            return hotlease_map(handle_.get(), calls.data(), calls.size(), failure);
        });
    }

    std::shared_ptr<hotlease_function> handle_;
};

} // namespace hotlease

#undef HOTLEASE_NO_HANDLES_

#endif
