// What may cross to a worker and back, and how a result becomes a value. Included by hotlease/hotlease.hpp.
#ifndef HOTLEASE_CLIENT_RESULT_HPP
#define HOTLEASE_CLIENT_RESULT_HPP

#include <hotlease/client/error.hpp>

#include <cstddef>
#include <ranges>
#include <string>
#include <type_traits>
#include <vector>

namespace hotlease {

// What may cross to a worker and back.
template <class T>
concept plain = std::is_trivially_copyable_v<T> && std::is_object_v<T> && !std::is_pointer_v<T> &&
                !std::is_const_v<T>;

// Elements that lie one after another and are plain: vectors, arrays, spans, strings.
template <class Range>
concept plain_range = std::ranges::contiguous_range<const Range> && std::ranges::sized_range<const Range> &&
                      plain<std::ranges::range_value_t<Range>>;

namespace detail {

// Bytes that a function wrote, as a number of elements.
template <plain T>
std::size_t elements(std::size_t bytes)
{
    if (bytes % sizeof(T) != 0)
        throw error(kind::function_failed, ran::yes,
                    "the function wrote " + std::to_string(bytes) + " bytes, which is no whole number of " +
                        std::to_string(sizeof(T)) + "-byte elements; is this its result type?");
    return bytes / sizeof(T);
}

// How each kind of result is fetched: `fetch(out, capacity)` waits and gives the bytes written.
template <class T> // one value
struct result {
    template <class Fetch>
    static T from(Fetch&& fetch, std::size_t)
    {
        T value{};
        const std::size_t bytes = fetch(&value, sizeof value);
        if (bytes != sizeof value)
            throw error(kind::function_failed, ran::yes,
                        "the function wrote " + std::to_string(bytes) + " bytes where one value of " +
                            std::to_string(sizeof value) + " was expected; is this its result type?");
        return value;
    }
};

template <plain T> // any number of values
struct result<std::vector<T>> {
    template <class Fetch>
    static std::vector<T> from(Fetch&& fetch, std::size_t capacity)
    {
        std::vector<T> values(capacity / sizeof(T));
        values.resize(elements<T>(fetch(values.data(), values.size() * sizeof(T))));
        return values;
    }
};

template <plain T>
struct in_buffer;

template <plain T> // values in a buffer: how many
struct result<in_buffer<T>> {
    template <class Fetch>
    static std::size_t from(Fetch&& fetch, std::size_t)
    {
        return elements<T>(fetch(nullptr, 0));
    }
};

} // namespace detail

} // namespace hotlease

#endif
