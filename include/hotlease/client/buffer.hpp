// Memory that client and workers share. Included by hotlease/hotlease.hpp.
#ifndef HOTLEASE_CLIENT_BUFFER_HPP
#define HOTLEASE_CLIENT_BUFFER_HPP

#include <hotlease/client/result.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

namespace hotlease {

template <plain T>
class buffer;
template <plain T>
class part;

namespace detail {

template <class T>
inline constexpr bool is_buffer<buffer<T>> = true;
template <class T>
inline constexpr bool is_part<part<T>> = true;
template <class T>
inline constexpr bool stands_for_memory<buffer<T>> = true;
template <class T>
inline constexpr bool stands_for_memory<part<T>> = true;

} // namespace detail

// Part of a buffer: elements that a function reads or writes in place.
template <plain T>
class part {
public:
    using value_type = T;

    std::size_t size() const noexcept { return count_; }
    hotlease_range range() const noexcept
    {
        return {buffer_, first_ * sizeof(T), count_ * sizeof(T)};
    }

private:
    friend class buffer<T>;
    part(hotlease_buffer* buffer, std::size_t first, std::size_t count)
        : buffer_(buffer), first_(first), count_(count)
    {
    }
    hotlease_buffer* buffer_;
    std::size_t first_;
    std::size_t count_;
};

// Memory that functions read and write in place; zeroed at first. A contiguous range of T.
//
// While a submitted invocation uses a part of a buffer, do not access this part until the invocation's future is ready.
template <plain T>
class buffer {
public:
    using value_type = T;

    buffer() = default;
    // A buffer that was moved from is empty.
    buffer(buffer&& from) noexcept
        : handle_(std::move(from.handle_)), data_(std::exchange(from.data_, nullptr)),
          size_(std::exchange(from.size_, 0))
    {
    }
    buffer& operator=(buffer&& from) noexcept
    {
        handle_ = std::move(from.handle_);
        data_ = std::exchange(from.data_, nullptr);
        size_ = std::exchange(from.size_, 0);
        return *this;
    }

    T* data() noexcept { return data_; }
    const T* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    T* begin() noexcept { return data_; }
    T* end() noexcept { return data_ + size_; }
    const T* begin() const noexcept { return data_; }
    const T* end() const noexcept { return data_ + size_; }
    T& operator[](std::size_t i) noexcept { return data_[i]; }
    const T& operator[](std::size_t i) const noexcept { return data_[i]; }

    // `count` elements from `first` on; throws std::out_of_range if there are fewer.
    hotlease::part<T> part(std::size_t first, std::size_t count) const
    {
        detail::alive(handle_.get(), "hotlease::buffer is empty: it was moved from, or made without an invoker");
        if (first > size_ || count > size_ - first)
            throw std::out_of_range("hotlease::buffer::part: " + std::to_string(count) + " elements from " +
                                    std::to_string(first) + " on, of " + std::to_string(size_));
        return {handle_.get(), first, count};
    }
    hotlease::part<T> part() const { return part(0, size_); }
    hotlease_range range() const { return part().range(); }

private:
    friend class invoker;
    buffer(hotlease_buffer* handle, std::size_t size)
        : handle_(handle), data_(static_cast<T*>(hotlease_buffer_data(handle))), size_(size)
    {
    }
    detail::unique<hotlease_buffer, hotlease_buffer_free> handle_;
    T* data_ = nullptr;
    std::size_t size_ = 0;
};

} // namespace hotlease

#endif
