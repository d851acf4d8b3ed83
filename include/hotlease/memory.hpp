// hotlease/memory.hpp: memory of other nodes that a program reads and writes, from C++20. Header only, over memory.h.
// Link with -lhotlease (CMake: hotlease::hotlease).
//
//     hotlease::memory memory{8ull << 30};               // 8 GiB, all zero, no core
//     memory.write(4096, row);                           // any contiguous range of plain values
//     memory.read(4096, row);
//
// Conventions: the conventions of hotlease.hpp, and the last two conventions of memory.h.
#ifndef HOTLEASE_MEMORY_HPP
#define HOTLEASE_MEMORY_HPP

#if !(__cplusplus >= 202002L && __has_include(<concepts>) && __has_include(<ranges>))
#error "memory.hpp needs C++20: compile with -std=c++20 or later (memory.h is for older C++, too)"
#else

#include <hotlease/hotlease.hpp>
#include <hotlease/memory.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ranges>
#include <string>
#include <type_traits>
#include <utility>

namespace hotlease {

// Options of a memory; explained at hotlease_memory_options in memory.h.
struct memory_options {
    std::uint32_t nodes = 1;
    std::uint32_t stripe_bytes = 1u << 20;
    options lease = {};
};

// A copy that was begun. The range that it reads or writes must live, and must not be used, until wait() returns; the
// destructor waits as well. Can be moved.
class memory_transfer {
public:
    memory_transfer(memory_transfer&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    memory_transfer& operator=(memory_transfer&& other) noexcept
    {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~memory_transfer()
    {
        if (handle_ != nullptr)
            hotlease_memory_wait(handle_, nullptr);
    }

    // Waits until the copy has ended; throws if it failed. Later calls do nothing.
    void wait()
    {
        if (hotlease_memory_transfer* handle = std::exchange(handle_, nullptr))
            detail::check([&](hotlease_error** failure) { return hotlease_memory_wait(handle, failure); });
    }

private:
    friend class memory;
    explicit memory_transfer(hotlease_memory_transfer* handle) noexcept : handle_(handle) {}
    hotlease_memory_transfer* handle_;
};

// Memory of one or several nodes. Given back by the destructor, unless deallocate() did that before. Offsets are bytes.
// Can be moved; any number of threads may read and write it at once.
class memory {
public:
    explicit memory(std::uint64_t size_bytes, const memory_options& options = {})
    {
        const hotlease_options lease = detail::to_c(options.lease);
        hotlease_memory_options in_c{};
        in_c.struct_size = sizeof in_c;
        in_c.nodes = options.nodes;
        in_c.stripe_bytes = options.stripe_bytes;
        in_c.lease = &lease;
        hotlease_memory* allocated = nullptr;
        detail::check([&](hotlease_error** failure) {
            return hotlease_memory_allocate(size_bytes, &in_c, &allocated, failure);
        });
        handle_.reset(allocated);
    }

    std::uint64_t size() const noexcept { return hotlease_memory_size(handle_.get()); }
    // How the first node's memory is reached: "shm", or a provider of libfabric.
    std::string transport() const { return hotlease_memory_transport(handle_.get()); }

    // Fills a range of values with the bytes from `offset` on.
    template <std::ranges::contiguous_range Out>
        requires plain<std::ranges::range_value_t<Out>>
    void read(std::uint64_t offset, Out&& out) const
    {
        detail::check([&](hotlease_error** failure) {
            return hotlease_memory_read(handle_.get(), offset, std::ranges::data(out), bytes_of(out), failure);
        });
    }
    // Copies a range of values to the bytes from `offset` on. The memory has them when this returns.
    template <plain_range In>
    void write(std::uint64_t offset, const In& in) const
    {
        detail::check([&](hotlease_error** failure) {
            return hotlease_memory_write(handle_.get(), offset, std::ranges::data(in), bytes_of(in), failure);
        });
    }

    // Begin a copy of a range that outlives it.
    template <std::ranges::contiguous_range Out>
        requires plain<std::ranges::range_value_t<Out>>
    [[nodiscard]] memory_transfer begin_read(std::uint64_t offset, Out& out) const
    {
        hotlease_memory_transfer* begun = nullptr;
        detail::check([&](hotlease_error** failure) {
            return hotlease_memory_begin_read(handle_.get(), offset, std::ranges::data(out), bytes_of(out), &begun,
                                              failure);
        });
        return memory_transfer(begun);
    }
    template <plain_range In>
    [[nodiscard]] memory_transfer begin_write(std::uint64_t offset, const In& in) const
    {
        hotlease_memory_transfer* begun = nullptr;
        detail::check([&](hotlease_error** failure) {
            return hotlease_memory_begin_write(handle_.get(), offset, std::ranges::data(in), bytes_of(in), &begun,
                                               failure);
        });
        return memory_transfer(begun);
    }
    template <plain_range In>
    memory_transfer begin_write(std::uint64_t offset, In&& in) const
        requires(!std::is_lvalue_reference_v<In>)
    = delete; // the range would be gone before the copy has ended

    // Waits until no copy is under way.
    void flush() const
    {
        detail::check([&](hotlease_error** failure) { return hotlease_memory_flush(handle_.get(), failure); });
    }

    // Gives the memory back; returns the time for which it was held, summed over its nodes.
    std::chrono::nanoseconds deallocate()
    {
        detail::alive(handle_.get(), "hotlease::memory was moved from, or given back");
        hotlease_usage used{};
        used.struct_size = sizeof used;
        detail::check([&](hotlease_error** failure) {
            return hotlease_memory_deallocate(handle_.release(), &used, failure);
        });
        return std::chrono::nanoseconds(used.allocated_ns);
    }
    const hotlease_memory* handle() const noexcept { return handle_.get(); }

private:
    template <class Range>
    static std::size_t bytes_of(const Range& range)
    {
        return std::ranges::size(range) * sizeof *std::ranges::data(range);
    }
    detail::unique<hotlease_memory, hotlease_memory_free> handle_;
};

} // namespace hotlease

#endif
#endif
