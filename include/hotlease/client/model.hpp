// Model of the cost of calls. Included by hotlease/hotlease.hpp.
#ifndef HOTLEASE_CLIENT_MODEL_HPP
#define HOTLEASE_CLIENT_MODEL_HPP

#include <hotlease/client/error.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace hotlease {

// Division of a number of equal tasks.
struct plan {
    std::size_t local;                  // tasks to run here: while they run, the results of sent tasks arrive
    std::size_t remote;                 // tasks to send first
    std::chrono::nanoseconds predicted; // time until all tasks are done
};

// Cost of a function's calls, learned by function::learn.
//
//     auto model = task.learn(in);
//     auto [local, remote, predicted] = model.plan(tasks, time_of_one_here);
class model {
public:
    // Returns how many of `tasks` to run on the caller's core, where a task takes `local_time`, and how many to send to
    // the slots that the function uses, so that the caller never waits for results.
    hotlease::plan plan(std::size_t tasks, std::chrono::nanoseconds local_time) const
    {
        hotlease_plan made{};
        made.struct_size = sizeof made;
        const auto local_ns = local_time.count() > 0 ? static_cast<std::uint64_t>(local_time.count()) : 0;
        detail::alive(handle_.get(), "hotlease::model was moved from");
        detail::check([&](hotlease_error** failure) {
            return hotlease_model_plan(handle_.get(), tasks, local_ns, &made, failure);
        });
        return {static_cast<std::size_t>(made.local), static_cast<std::size_t>(made.remote),
                std::chrono::nanoseconds(made.predicted_ns)};
    }

private:
    friend class function;
    explicit model(hotlease_model* handle) : handle_(handle) {}

    detail::unique<hotlease_model, hotlease_model_free> handle_;
};

} // namespace hotlease

#endif
