// Types that can be sent to a worker and back, and conversion of results to values. Included by hotlease/hotlease.hpp.
#ifndef HOTLEASE_CLIENT_RESULT_HPP
#define HOTLEASE_CLIENT_RESULT_HPP

#include <hotlease/client/error.hpp>

#include <cstddef>
#include <ranges>
#include <string>
#include <type_traits>
#include <vector>

namespace hotlease {

namespace detail {

// Whether a type refers to other memory: its own bytes mean nothing to a worker.
template <class T>
inline constexpr bool stands_for_memory = std::is_pointer_v<T> || std::is_member_pointer_v<T>;

// Whether a type is a hotlease::buffer or hotlease::part: functions use its memory in place.
template <class T>
inline constexpr bool is_buffer = false;
template <class T>
inline constexpr bool is_part = false;

template <class>
inline constexpr bool never = false;

} // namespace detail

// Types whose values can be sent to a worker and back.
template <class T>
concept plain = std::is_trivially_copyable_v<T> && std::is_object_v<T> && !std::is_const_v<T> &&
                !detail::stands_for_memory<T>;

// Contiguous ranges of plain elements: vectors, arrays, spans, strings.
template <class Range>
concept plain_range = std::ranges::contiguous_range<const Range> && std::ranges::sized_range<const Range> &&
                      plain<std::ranges::range_value_t<Range>>;

// A buffer or a part of a buffer.
template <class T>
concept in_place = detail::is_buffer<std::remove_cvref_t<T>> || detail::is_part<std::remove_cvref_t<T>>;

// Inputs of a function: values, which are copied, or memory that client and worker share.
template <class T>
concept input = in_place<T> || plain_range<T>;

// Destinations of a result. (A part may be const, because it only refers to memory.)
template <class T>
concept place = (in_place<T> && !(detail::is_buffer<std::remove_cvref_t<T>> &&
                                  std::is_const_v<std::remove_reference_t<T>>)) ||
                (!in_place<T> && std::ranges::contiguous_range<T> && std::ranges::sized_range<T> &&
                 plain<std::ranges::range_value_t<T>>);

// Several parts of buffers, for instance in a vector, an array or a span.
template <class Range>
concept range_of_parts = std::ranges::input_range<const Range> &&
                         detail::is_part<std::remove_cvref_t<std::ranges::range_value_t<const Range>>>;

// Ranges that programs pass as inputs by mistake: ranges of pointers, buffers or parts.
template <class Range>
concept range_of_handles =
    std::ranges::range<const Range> && !plain<std::ranges::range_value_t<const Range>> &&
    (detail::stands_for_memory<std::ranges::range_value_t<const Range>> ||
     in_place<std::ranges::range_value_t<const Range>>);

namespace detail {

// Element type of a range, a buffer or a part.
template <class T>
struct element_of {
    using type = std::ranges::range_value_t<T>;
};
template <in_place T>
struct element_of<T> {
    using type = typename std::remove_cvref_t<T>::value_type;
};
template <class T>
using element = typename element_of<T>::type;

// Converts the bytes that a function wrote to a number of elements.
template <plain T>
std::size_t elements(std::size_t bytes)
{
    if (bytes % sizeof(T) != 0)
        throw error(kind::function_failed, ran::yes,
                    "the function wrote " + std::to_string(bytes) + " bytes, which is no whole number of " +
                        std::to_string(sizeof(T)) + "-byte elements; is this its result type?");
    return bytes / sizeof(T);
}

// Fetches each kind of result: `fetch(out, capacity)` waits, and returns the number of bytes written.
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

template <plain T> // values in a buffer: their number
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
