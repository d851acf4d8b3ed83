// Many small calls in flight on one slot. Included by hotlease/hotlease.hpp.
#ifndef HOTLEASE_CLIENT_PIPELINE_HPP
#define HOTLEASE_CLIENT_PIPELINE_HPP

#include <hotlease/client/result.hpp>

#include <cstddef>

namespace hotlease {

// The cheapest way to make many small calls: all calls are sent to one slot, which answers them in order.
//
//     auto pipeline = task.pipeline<double, double>(); // result, input
//     for (double value : values) {
//         if (pipeline.full())
//             use(pipeline.pop());
//         pipeline.push(value);
//     }
//     while (!pipeline.empty())
//         use(pipeline.pop());
//
// Only one thread may use a pipeline. Destroying a pipeline discards the results that were not popped.
template <plain R, plain T>
class pipeline {
public:
    std::size_t size() const noexcept { return hotlease_pipeline_size(handle_.get()); }
    bool empty() const noexcept { return size() == 0; }
    // Whether a result must be popped before the next push.
    bool full() const noexcept { return hotlease_pipeline_is_full(handle_.get()) != 0; }

    // Starts a call. Throws kind::busy if the pipeline is full.
    void push(const T& in)
    {
        check([&](hotlease_error** failure) {
            return hotlease_pipeline_push(handle_.get(), &in, sizeof in, failure);
        });
    }
    // Waits for the oldest call and returns its result; throws if the call failed. The next pop() returns the next
    // result.
    R pop()
    {
        return detail::result<R>::from(
            [&](void* out, std::size_t capacity) {
                std::size_t bytes = 0;
                check([&](hotlease_error** failure) {
                    return hotlease_pipeline_pop(handle_.get(), out, capacity, &bytes, failure);
                });
                return bytes;
            },
            0);
    }

private:
    friend class function;
    explicit pipeline(hotlease_pipeline* handle) : handle_(handle) {}

    template <class Call>
    void check(Call&& call)
    {
        detail::alive(handle_.get(), "hotlease::pipeline was moved from");
        detail::check(call);
    }
    detail::unique<hotlease_pipeline, hotlease_pipeline_free> handle_;
};

} // namespace hotlease

#endif
