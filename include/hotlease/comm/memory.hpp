// Caller's memory in messages and collectives. Included by hotlease/communicator.hpp.
#ifndef HOTLEASE_COMM_MEMORY_HPP
#define HOTLEASE_COMM_MEMORY_HPP

#include <hotlease/comm/datatype.hpp>

#include <concepts>
#include <cstddef>
#include <ranges>
#include <type_traits>

namespace hotlease {

// Passed as input: this rank's contribution is already in the output, at the place of its block, or of the result. In
// scatter and scatterv, passed as output: the root's block stays in the input. In gather, gatherv, scatter, scatterv
// and reduce, only the root may pass it.
struct inplace_t {};
inline constexpr inplace_t inplace{};

// One element.
template <class T>
concept single = plain<T> && !std::ranges::range<T>;

// Memory whose elements may be written: vectors, arrays, spans.
template <class Range>
concept writable = std::ranges::contiguous_range<Range> && std::ranges::sized_range<Range> &&
                   plain<std::ranges::range_value_t<Range>> &&
                   !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<Range>>>;

// Contribution of a rank to a collective.
template <class T>
concept given = plain_range<std::remove_cvref_t<T>> || std::same_as<std::remove_cvref_t<T>, inplace_t>;

// Objects whose memory still exists when a call has returned: no temporaries, except views of other memory.
template <class T>
concept lasting = std::is_lvalue_reference_v<T> || std::ranges::borrowed_range<T> ||
                  std::same_as<std::remove_cvref_t<T>, inplace_t>;

namespace detail {

template <class Range>
using value_of = std::ranges::range_value_t<std::remove_cvref_t<Range>>;

// Element type of input and output of a collective; one of the two may be hotlease::inplace.
template <class In, class Out>
struct sides_of {
    using type = value_of<In>;
    static_assert(std::same_as<value_of<In>, value_of<Out>>,
                  "input and output have elements of different types");
};
template <class Out>
struct sides_of<inplace_t, Out> {
    using type = value_of<Out>;
};
template <class In>
struct sides_of<In, inplace_t> {
    using type = value_of<In>;
};
template <class In, class Out>
using common = typename sides_of<std::remove_cvref_t<In>, std::remove_cvref_t<Out>>::type;

template <class Range>
const void* input(const Range& values)
{
    if constexpr (std::same_as<Range, inplace_t>)
        return HOTLEASE_COMM_IN_PLACE;
    else
        return std::ranges::data(values);
}
template <class Range>
void* output(Range& into)
{
    if constexpr (std::same_as<std::remove_cv_t<Range>, inplace_t>)
        return HOTLEASE_COMM_IN_PLACE;
    else
        return std::ranges::data(into);
}
template <class Range>
std::size_t length(const Range& range)
{
    return static_cast<std::size_t>(std::ranges::size(range));
}

} // namespace detail

} // namespace hotlease

#endif
