// hotlease/hotlease.hpp: for callers of functions, from C++20. Header only, over hotlease.h; link with -lhotlease
// (CMake: hotlease::hotlease).
//
//     hotlease::invoker invoker{hotlease::code{"libtask.so"}, {.slots = 2}};
//     hotlease::function task = invoker.function("task");
//
//     // A call: bytes in, bytes out.
//     std::vector<double> doubled = task.call<double>(std::vector{1.0, 2.0, 3.0});
//
//     // A future, on memory of any size that is not copied: a loop shared with the worker.
//     auto in = invoker.input<double>(2 * n);
//     auto out = invoker.output<double>(2 * n);
//     auto first_half = task.submit(in, n, out);       // the worker takes the first n elements
//     local_task(in.data() + n, n, out.data() + n);    // we take the rest
//     std::size_t produced = first_half.get();
//
// Conventions
//  1. Objects own their resources and may be destroyed in any order. They can be moved; hotlease::code and
//     hotlease::function can be copied too.
//  2. Failures throw hotlease::error, which says what failed, whether the function ran, and whether its time is billed.
//     No exception may pass through C: functions and callbacks must not throw.
//  3. Several threads may use codes, invokers, functions and buffers at once, but only one thread a future.
//  4. Only plain data can be sent to the worker: trivially copyable types without pointers in them.
//  5. Sizes and counts are in elements, not bytes, wherever a type is named.
#ifndef HOTLEASE_HOTLEASE_HPP
#define HOTLEASE_HOTLEASE_HPP

#if !(__cplusplus >= 202002L && __has_include(<concepts>) && __has_include(<ranges>))
#error "hotlease.hpp needs C++20: compile with -std=c++20 or later (hotlease.h is for older C++, too)"
#else

#include <hotlease/client/buffer.hpp>
#include <hotlease/client/error.hpp>
#include <hotlease/client/function.hpp>
#include <hotlease/client/future.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace hotlease {

// A function library: read and checked, never run by this process.
class code {
public:
    explicit code(const std::string& path)
    {
        hotlease_code* opened = nullptr;
        detail::check(
            [&](hotlease_error** failure) { return hotlease_code_open(path.c_str(), &opened, failure); });
        handle_.reset(opened, hotlease_code_free);
    }
    explicit code(std::span<const std::byte> bytes)
    {
        hotlease_code* opened = nullptr;
        detail::check([&](hotlease_error** failure) {
            return hotlease_code_from_bytes(bytes.data(), bytes.size(), &opened, failure);
        });
        handle_.reset(opened, hotlease_code_free);
    }

    // The names of the library's functions, sorted.
    std::vector<std::string> functions() const
    {
        std::vector<std::string> names;
        for (std::size_t i = 0; i < hotlease_code_function_count(handle_.get()); ++i)
            names.emplace_back(hotlease_code_function_name(handle_.get(), i));
        return names;
    }
    const hotlease_code* handle() const noexcept { return handle_.get(); }

private:
    std::shared_ptr<hotlease_code> handle_;
};

enum class polling {
    adaptive = HOTLEASE_POLLING_ADAPTIVE,
    hot = HOTLEASE_POLLING_HOT,
    warm = HOTLEASE_POLLING_WARM
};
enum class completion {
    adaptive = HOTLEASE_COMPLETION_ADAPTIVE,
    spin = HOTLEASE_COMPLETION_SPIN,
    sleep = HOTLEASE_COMPLETION_SLEEP
};

// Options of a lease, and of its calls; explained at hotlease_options in hotlease.h.
struct options {
    std::uint32_t workers = 1;
    std::uint32_t slots = 1; // of each worker
    hotlease::polling polling = hotlease::polling::adaptive;
    hotlease::completion completion = hotlease::completion::adaptive;
    std::chrono::microseconds hot_budget = std::chrono::milliseconds(1);
    std::chrono::milliseconds ttl = std::chrono::seconds(5);
    std::uint64_t memory_bytes = 0;                                         // 0: the node's share
    std::chrono::microseconds timeout = std::chrono::microseconds::zero(); // zero: none
    std::uint32_t depth = 64;
    std::uint32_t request_bytes = 8128;
    std::uint32_t reply_bytes = 8128;
    std::uint32_t retries = 1;
    bool renew_lease = true;   // false: the lease ends after `ttl`, and calls fail then
    bool replace_lease = true; // false: calls fail when the lease has ended; true: they take a new lease
    std::string label = {};       // empty: program and process
    std::string runtime_dir = {}; // empty: from the environment
    std::string manager = {};     // of another host, https://HOST:PORT; empty: from the environment
    std::string identity = {};    // identity of the client at this manager, a folder; empty: from the environment
    std::string transport = {};   // how workers are reached: "shm", "ofi", a provider of libfabric; empty: from the
                                  // environment
    std::uint64_t registered_bytes = 0;   // limit of buffer bytes registered with a worker at a time; 0: 16 GiB
    std::uint32_t registered_buffers = 0; // limit of buffers registered with a worker at a time; 0: 1024, the maximum
    bool shared = false;                  // cores are shared: slots sleep between invocations, and take turns
    bool wait_for_core = true;            // on shared cores: calls wait for a free core; false: kind::busy
    std::uint32_t spread_least = 0; // 0: all workers on one agent; else on several, at least `spread_least` workers
    bool direct = false;            // asks agents without the manager, if they allow it
    std::chrono::milliseconds move_within = std::chrono::seconds(5); // time to replace a lost lease
    std::chrono::milliseconds patience = std::chrono::milliseconds::zero(); // time to wait for free cores
    std::uint32_t gpus = 0; // GPUs of each worker; their numbers are in $HOTLEASE_GPUS
    std::string sandbox = {}; // kind of isolation, "namespace" for instance; empty: the site's choice
    std::string mounts = {};  // directories that functions see in their sandbox, one per line: PATH[:INSIDE][:rw]
    bool network = false;     // whether sandboxes have the host's network
    std::string storage = {}; // object storage for functions, one place per line: s3://BUCKET[/PREFIX][:ro|:rw]
    std::string state = {};   // name of the state that functions leave for the next lease; empty: no state is kept
    std::string variables = {}; // environment variables of the workers, one per line: NAME=VALUE
};

namespace detail {

// Number of units of a time, for the options of C; the error for a negative time names the option.
template <class Time>
std::uint64_t at_least_0(Time time, const char* name)
{
    if (time.count() < 0)
        throw error(kind::invalid_argument, ran::no,
                    "options." + std::string(name) + " must not be negative, as " + std::to_string(time.count()) + " is");
    return static_cast<std::uint64_t>(time.count());
}

// Converts to the options of C, whose texts point into `options`.
inline hotlease_options to_c(const options& options)
{
    hotlease_options in_c{};
    in_c.struct_size = sizeof in_c;
    in_c.workers = options.workers;
    in_c.slots = options.slots;
    in_c.polling = static_cast<std::uint32_t>(options.polling);
    in_c.completion = static_cast<std::uint32_t>(options.completion);
    in_c.hot_budget_us = at_least_0(options.hot_budget, "hot_budget");
    in_c.ttl_ms = at_least_0(options.ttl, "ttl");
    in_c.memory_bytes = options.memory_bytes;
    in_c.timeout_us = at_least_0(options.timeout, "timeout");
    in_c.depth = options.depth;
    in_c.request_bytes = options.request_bytes;
    in_c.reply_bytes = options.reply_bytes;
    in_c.retries = options.retries > 0 ? static_cast<std::int32_t>(options.retries) : -1;
    in_c.no_new_lease = options.replace_lease ? 0 : 1;
    in_c.no_renewal = options.renew_lease ? 0 : 1;
    in_c.shared = options.shared ? 1 : 0;
    in_c.no_core_wait = options.wait_for_core ? 0 : 1;
    in_c.label = options.label.empty() ? nullptr : options.label.c_str();
    in_c.runtime_dir = options.runtime_dir.empty() ? nullptr : options.runtime_dir.c_str();
    in_c.manager = options.manager.empty() ? nullptr : options.manager.c_str();
    in_c.identity = options.identity.empty() ? nullptr : options.identity.c_str();
    in_c.transport = options.transport.empty() ? nullptr : options.transport.c_str();
    in_c.sandbox = options.sandbox.empty() ? nullptr : options.sandbox.c_str();
    in_c.registered_bytes = options.registered_bytes;
    in_c.registered_buffers = options.registered_buffers;
    in_c.spread_least = options.spread_least;
    in_c.direct = options.direct ? 1 : 0;
    in_c.move_within_ms = at_least_0(options.move_within, "move_within");
    in_c.patience_ms = at_least_0(options.patience, "patience");
    in_c.gpus = options.gpus;
    in_c.mounts = options.mounts.empty() ? nullptr : options.mounts.c_str();
    in_c.network = options.network ? 1 : 0;
    in_c.storage = options.storage.empty() ? nullptr : options.storage.c_str();
    in_c.variables = options.variables.empty() ? nullptr : options.variables.c_str();
    in_c.state = options.state.empty() ? nullptr : options.state.c_str();
    return in_c;
}

} // namespace detail

// Usage of a lease.
struct usage {
    std::chrono::nanoseconds allocated; // number of slots times the time for which they were held
    std::chrono::nanoseconds hot;       // time in which slots polled
    std::chrono::nanoseconds compute;   // time in functions
    std::uint64_t invocations;
};

// A lease, and the connection to its workers. The lease ends when this object, its functions and their futures are all
// destroyed, unless deallocate() ended it before.
class invoker {
public:
    explicit invoker(const code& code, const options& options = {})
    {
        const hotlease_options in_c = detail::to_c(options);
        detail::alive(code.handle(), "hotlease::code was moved from");
        hotlease_invoker* allocated = nullptr;
        detail::check([&](hotlease_error** failure) {
            return hotlease_allocate(code.handle(), &in_c, &allocated, failure);
        });
        handle_.reset(allocated);
    }

    hotlease::function function(const std::string& name, const function_options& options = {}) const
    {
        hotlease_function_options how{};
        how.struct_size = sizeof how;
        how.timeout_us = detail::at_least_0(options.timeout, "timeout");
        how.output_bytes = options.output_bytes;
        how.idempotent = !options.idempotent ? 0 : *options.idempotent ? 1 : -1;
        hotlease_function* found = nullptr;
        alive();
        detail::check([&](hotlease_error** failure) {
            return hotlease_function_find(handle_.get(), name.c_str(), &how, &found, failure);
        });
        return hotlease::function(found);
    }

    // Makes memory for `count` elements, as input, output or both. input() and output() do the same; their names only
    // show the intended use.
    template <plain T>
    hotlease::buffer<T> buffer(std::size_t count) const
    {
        if (count > SIZE_MAX / sizeof(T))
            throw std::length_error("hotlease::invoker::buffer: too many elements");
        alive();
        hotlease_buffer* created = nullptr;
        detail::check([&](hotlease_error** failure) {
            return hotlease_buffer_create(handle_.get(), count * sizeof(T), &created, failure);
        });
        return {created, count};
    }
    template <plain T>
    hotlease::buffer<T> input(std::size_t count) const
    {
        return buffer<T>(count);
    }
    template <plain T>
    hotlease::buffer<T> output(std::size_t count) const
    {
        return buffer<T>(count);
    }

    // Number of slots of all workers together.
    std::uint32_t slots() const noexcept { return hotlease_invoker_slots(handle_.get()); }

    // Transport by which the first worker was reached when the lease was taken: "shm", or a provider of libfabric.
    std::string transport() const { return hotlease_invoker_transport(handle_.get()); }

    // Ends the lease; calls in flight fail with kind::lease_ended. Returns the usage of the lease.
    hotlease::usage deallocate()
    {
        hotlease_usage used{};
        used.struct_size = sizeof used;
        alive();
        detail::check(
            [&](hotlease_error** failure) { return hotlease_deallocate(handle_.get(), &used, failure); });
        using std::chrono::nanoseconds;
        return {nanoseconds(used.allocated_ns), nanoseconds(used.hot_ns), nanoseconds(used.compute_ns),
                used.invocations};
    }
    const hotlease_invoker* handle() const noexcept { return handle_.get(); }

private:
    void alive() const { detail::alive(handle_.get(), "hotlease::invoker was moved from"); }
    detail::unique<hotlease_invoker, hotlease_invoker_free> handle_;
};

// Version of the library in use, "0.1.0" for instance.
inline std::string version()
{
    return hotlease_version();
}

} // namespace hotlease

#endif
#endif
