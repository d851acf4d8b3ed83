// Memory that client and workers share. Included by hotlease/hotlease.hpp.
#ifndef HOTLEASE_CLIENT_BUFFER_HPP
#define HOTLEASE_CLIENT_BUFFER_HPP

#include <hotlease/client/result.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace hotlease {

template <plain T>
class buffer;

// Elements of a buffer, to be read or written by a function in place.
template <plain T>
class part {
public:
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
// While a submitted invocation uses a part of it, that part must be left alone until its future is ready.
template <plain T>
class buffer {
public:
    using value_type = T;

    buffer() = default;

    T* data() noexcept { return data_; }
    const T* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }
    T* begin() noexcept { return data_; }
    T* end() noexcept { return data_ + size_; }
    const T* begin() const noexcept { return data_; }
    const T* end() const noexcept { return data_ + size_; }
    T& operator[](std::size_t i) noexcept { return data_[i]; }
    const T& operator[](std::size_t i) const noexcept { return data_[i]; }

    // `count` elements from `first` on; throws std::out_of_range if there are not so many.
    hotlease::part<T> part(std::size_t first, std::size_t count) const
    {
        if (first > size_ || count > size_ - first)
            throw std::out_of_range("hotlease::buffer::part: " + std::to_string(count) + " elements from " +
                                    std::to_string(first) + " on, of " + std::to_string(size_));
        return {handle_.get(), first, count};
    }
    hotlease::part<T> part() const { return part(0, size_); }

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
