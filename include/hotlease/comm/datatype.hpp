// Element types and operators of reductions. Included by hotlease/communicator.hpp.
#ifndef HOTLEASE_COMM_DATATYPE_HPP
#define HOTLEASE_COMM_DATATYPE_HPP

#include <hotlease/client/result.hpp>
#include <hotlease/comm/error.hpp>

#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace hotlease {

// A value and its index, for op::minloc and op::maxloc.
template <class T>
struct with_index {
    T value;
    std::int32_t index;
    friend bool operator==(const with_index&, const with_index&) = default;
};

namespace detail {

template <class T>
inline constexpr bool is_complex = false;
template <class T>
inline constexpr bool is_complex<std::complex<T>> = std::same_as<T, float> || std::same_as<T, double>;
template <class T>
inline constexpr bool is_indexed = false;
template <class T>
inline constexpr bool is_indexed<with_index<T>> =
    std::same_as<T, std::int32_t> || std::same_as<T, std::int64_t> || std::same_as<T, float> ||
    std::same_as<T, double>;
template <class T>
inline constexpr bool is_integer = std::integral<T> && !std::same_as<T, bool> && sizeof(T) <= 8;
template <class T>
inline constexpr bool is_real = std::same_as<T, float> || std::same_as<T, double>;

template <class T>
constexpr hotlease_comm_datatype number_of()
{
    static_assert(
        plain<T>,
        "elements of messages and collectives must be trivially copyable and without pointers: the bytes of "
        "anything else mean nothing to another process; send what it holds, or a serialised form of it");
    if constexpr (std::is_enum_v<T> && !std::same_as<T, std::byte>)
        return number_of<std::underlying_type_t<T>>();
    else if constexpr (std::same_as<T, bool>)
        return HOTLEASE_COMM_BOOL;
    else if constexpr (std::same_as<T, std::byte>)
        return HOTLEASE_COMM_BYTES;
    else if constexpr (is_integer<T>) { // numbered by size, signed before unsigned
        constexpr hotlease_comm_datatype by_size = sizeof(T) == 1   ? HOTLEASE_COMM_I8
                                                   : sizeof(T) == 2 ? HOTLEASE_COMM_I16
                                                   : sizeof(T) == 4 ? HOTLEASE_COMM_I32
                                                                    : HOTLEASE_COMM_I64;
        return by_size + (std::is_signed_v<T> ? 0 : 1);
    } else if constexpr (is_real<T>)
        return sizeof(T) == 4 ? HOTLEASE_COMM_F32 : HOTLEASE_COMM_F64;
    else if constexpr (is_complex<T>)
        return sizeof(T) == 8 ? HOTLEASE_COMM_COMPLEX64 : HOTLEASE_COMM_COMPLEX128;
    else if constexpr (is_indexed<T>) {
        if constexpr (std::integral<decltype(T::value)>)
            return sizeof(T) == 8 ? HOTLEASE_COMM_I32_INDEX : HOTLEASE_COMM_I64_INDEX;
        else
            return sizeof(T) == 8 ? HOTLEASE_COMM_F32_INDEX : HOTLEASE_COMM_F64_INDEX;
    } else {
        static_assert(sizeof(T) <= UINT32_MAX, "an element must have less than 4 GiB");
        return HOTLEASE_COMM_RECORD(sizeof(T));
    }
}

} // namespace detail

// The datatype of a C++ type: numbers, bool, std::byte, std::complex, with_index. An enum has the datatype of its
// underlying type. Any other type is a record, which only a user-defined operator can reduce.
template <class T>
inline constexpr hotlease_comm_datatype datatype_of = detail::number_of<std::remove_cv_t<T>>();

namespace detail {

// Groups of types that the built-in operators accept.
enum class suits { numbers, ordered, bits, truths, indexed };

template <suits Suits, class T>
constexpr bool is_suited()
{
    if constexpr (std::is_enum_v<T> && !std::same_as<T, std::byte>)
        return is_suited<Suits, std::underlying_type_t<T>>();
    else if constexpr (Suits == suits::numbers)
        return is_integer<T> || is_real<T> || is_complex<T>;
    else if constexpr (Suits == suits::ordered)
        return is_integer<T> || is_real<T>;
    else if constexpr (Suits == suits::bits)
        return is_integer<T> || std::same_as<T, bool> || std::same_as<T, std::byte>;
    else if constexpr (Suits == suits::truths)
        return is_integer<T> || std::same_as<T, bool>;
    else
        return is_indexed<T>;
}

template <std::uintptr_t Number, suits Suits>
struct built_in {
    static constexpr suits of = Suits;
    static const hotlease_comm_operator* handle() noexcept
    {
        return reinterpret_cast<const hotlease_comm_operator*>(Number);
    }
};
template <class Op>
inline constexpr bool is_built_in = false;
template <std::uintptr_t Number, suits Suits>
inline constexpr bool is_built_in<built_in<Number, Suits>> = true;

template <class Function>
struct commuting {
    Function function;
};
template <class Op>
inline constexpr bool is_commuting = false;
template <class Function>
inline constexpr bool is_commuting<commuting<Function>> = true;

} // namespace detail

// The built-in operators, explained at HOTLEASE_COMM_SUM in communicator.h. Any associative function that makes one
// element of two can be an operator, too.
namespace op {
inline constexpr detail::built_in<1, detail::suits::numbers> sum{};
inline constexpr detail::built_in<2, detail::suits::numbers> prod{};
inline constexpr detail::built_in<3, detail::suits::ordered> min{};
inline constexpr detail::built_in<4, detail::suits::ordered> max{};
inline constexpr detail::built_in<5, detail::suits::bits> bit_and{};
inline constexpr detail::built_in<6, detail::suits::bits> bit_or{};
inline constexpr detail::built_in<7, detail::suits::bits> bit_xor{};
inline constexpr detail::built_in<8, detail::suits::truths> logical_and{};
inline constexpr detail::built_in<9, detail::suits::truths> logical_or{};
inline constexpr detail::built_in<10, detail::suits::truths> logical_xor{};
inline constexpr detail::built_in<11, detail::suits::indexed> minloc{};
inline constexpr detail::built_in<12, detail::suits::indexed> maxloc{};
} // namespace op

// Marks a function of two elements as commutative. This is faster, because its operands need not be in rank order.
//
//     all.allreduce(mine, hotlease::commutative([](point a, point b) { return a.x < b.x ? b : a; }));
template <class Function>
detail::commuting<std::decay_t<Function>> commutative(Function&& function)
{
    return {std::forward<Function>(function)};
}

namespace detail {

// A function of the program, which the library keeps alive while an operation needs it.
template <class T, class Function>
struct own_operator {
    Function function;
    std::shared_ptr<thrown> failure;

    static int apply(void* user, const void* first, void* second, std::size_t count,
                     hotlease_comm_datatype) noexcept
    {
        const auto& self = *static_cast<const own_operator*>(user);
        const T* left = static_cast<const T*>(first);
        T* right = static_cast<T*>(second);
        try {
            for (std::size_t i = 0; i < count; ++i)
                right[i] = std::invoke(self.function, left[i], std::as_const(right[i]));
            return 0;
        } catch (...) {
            self.failure->keep(std::current_exception());
            return 1;
        }
    }
    static void release(void* user) noexcept { delete static_cast<own_operator*>(user); }
};

// Operator of a collective on elements T.
template <class T>
class reducer {
public:
    template <class Op>
    explicit reducer(const Op& by)
    {
        if constexpr (is_built_in<Op>) {
            static_assert(
                is_suited<Op::of, T>(),
                "there is no such reduction of this type (the sum of structs or of truth values, the maximum "
                "of "
                "complex numbers, ...): give a function of two elements instead, a lambda for instance");
            handle_ = Op::handle();
        } else if constexpr (is_commuting<Op>)
            make(by.function, true);
        else
            make(by, false);
    }
    const hotlease_comm_operator* handle() const noexcept { return handle_; }
    const std::shared_ptr<thrown>& failure() const noexcept { return failure_; }

private:
    template <class Function>
    void make(const Function& function, bool commutes)
    {
        static_assert(
            std::is_invocable_r_v<T, const Function&, const T&, const T&>,
            "an operator is one of hotlease::op, or a function that makes one element of two of them, "
            "hotlease::commutative of it if their order does not matter");
        static_assert(alignof(T) <= 16,
                      "elements of an operator of your own can be aligned to 16 bytes at most");
        failure_ = std::make_shared<thrown>();
        using own = own_operator<T, Function>;
        auto kept = std::make_unique<own>(own{function, failure_});
        hotlease_comm_operator* made = nullptr;
        communicate([&](hotlease_error** error) {
            return hotlease_comm_operator_create(own::apply, kept.release(), own::release, commutes, &made,
                                                 error);
        });
        made_.reset(made);
        handle_ = made;
    }

    const hotlease_comm_operator* handle_ = nullptr;
    unique<hotlease_comm_operator, hotlease_comm_operator_free> made_;
    std::shared_ptr<thrown> failure_;
};

} // namespace detail

} // namespace hotlease

#endif
