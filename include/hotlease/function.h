/*
 * hotlease/function.h: for those who WRITE functions. C11 and C++; nothing to link with.
 *
 * A function library is an ordinary shared library. A client sends its bytes to the workers of its
 * lease, and every function that the library exports can then be invoked by name:
 *
 *     #include <hotlease/function.h>
 *
 *     HOTLEASE_PLAIN_FUNCTION(sum);
 *
 *     uint32_t sum(const void* in, uint32_t size, void* out)
 *     {
 *         double total = 0;
 *         for (uint32_t i = 0; i < size / sizeof(double); i++)
 *             total += ((const double*)in)[i];
 *         *(double*)out = total;
 *         return sizeof total;
 *     }
 *
 * Build it with `cc -shared -fPIC -O2 -fvisibility=hidden`, or in CMake with hotlease_add_functions().
 * HOTLEASE_PLAIN_FUNCTION and HOTLEASE_FUNCTION may also stand directly before the body
 * (`HOTLEASE_FUNCTION(name) { ... }`); the parameters then have the names used below.
 *
 * Rules for both interfaces:
 *  1. A function runs on one slot, one thread pinned to its own core. Several slots of a worker may run
 *     the same function at once: what is global must be thread-safe.
 *  2. `in` may be read and `out` written during the call only. Neither is NULL, unless its size is 0.
 *     They never overlap unless the caller named the same buffer for both. `in` and `out` begin on a
 *     multiple of 64 bytes unless the caller asked for another offset of its buffer.
 *  3. Writing past the capacity of `out` is an error of the function; the worker is ended for it.
 *  4. A C++ exception or longjmp must not leave the function.
 *  5. A crash or exit() ends the worker, and its caller is told so. Other workers are not touched.
 *  6. Standard output and error of a worker are kept only for the message about its death.
 */
#ifndef HOTLEASE_FUNCTION_H
#define HOTLEASE_FUNCTION_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* What the worker gives to a function of the context interface. Valid during the call, except for
 * `*state`, which is the function library's own. */
typedef struct hotlease_context {
    /* sizeof(hotlease_context) of the worker. A later version adds fields at the end only: test it
     * before using a field that this version of the header did not have. */
    uint32_t struct_size;
    /* Which slot this is, from 0, and how many slots the worker has. */
    uint32_t slot;
    uint32_t slots;
    uint32_t reserved;
    /* Who pays for the lease, for instance "uid:1000". */
    const char* tenant;
    /* When the function must be done: nanoseconds of CLOCK_MONOTONIC, 0 if there is no deadline. */
    uint64_t deadline_ns;
    /* Becomes nonzero when the deadline has passed: return soon, with any value. A function that does
     * not is killed, with its worker, 50 ms later. See hotlease_cancelled(). */
    const volatile uint32_t* cancelled;
    /* One pointer for each slot, NULL at first, kept between the calls of this worker and shared by all
     * functions of the lease: for a connection, a model, a cache. Nobody frees it: a worker that ends
     * gives its memory back as a whole. */
    void** state;
    /* Working memory of the slot: 64-byte aligned, contents undefined at entry. */
    void* scratch;
    uint64_t scratch_bytes;
    /* What hotlease_context_communicator (gang.h) makes the communicator of the functions of a gang of; NULL: this
     * one runs alone. */
    void* communicator;
} hotlease_context;

/* The plain interface, that of the rFaaS papers: returns how many bytes it wrote to `out`. */
typedef uint32_t (*hotlease_plain_function)(const void* in, uint32_t size, void* out);

/* The context interface: 64-bit sizes, the capacity of `out`, and a context.
 *
 * Returns 0 for success; `*produced` (0 at entry) is then how many bytes it wrote. Any other value is
 * the function's own error number, which the caller gets to see together with the bytes written to
 * `out`: by convention a message in UTF-8. A function whose result does not fit sets `*produced` to
 * the size that it needs, writes nothing, and returns 0: the caller is told that size. */
typedef int32_t (*hotlease_context_function)(hotlease_context* context, const void* in, uint64_t size,
                                             void* out, uint64_t capacity, uint64_t* produced);

/* Declares a function of the plain interface and exports it. */
#define HOTLEASE_PLAIN_FUNCTION(name)                                            \
    HOTLEASE_EXPORT_ uint32_t name(const void* in, uint32_t size, void* out);    \
    HOTLEASE_EXTERN_C_ uint32_t name(const void* in, uint32_t size, void* out)

/* Declares a function of the context interface and exports it. Once in each library and function: a
 * data symbol beside the function tells client and worker which interface it has. */
#define HOTLEASE_FUNCTION(name)                                                                          \
    HOTLEASE_MARKER_(hotlease_context_##name);                                                           \
    HOTLEASE_EXPORT_ int32_t name(hotlease_context* context, const void* in, uint64_t size, void* out,   \
                                  uint64_t capacity, uint64_t* produced);                                \
    HOTLEASE_EXTERN_C_ int32_t name(hotlease_context* context, const void* in, uint64_t size, void* out, \
                                    uint64_t capacity, uint64_t* produced)

/* Declares that running the function a second time does no harm. Only then does the client library run
 * an invocation again by itself when the worker died during it. Stands beside either of the above. */
#define HOTLEASE_IDEMPOTENT(name) HOTLEASE_MARKER_(hotlease_idempotent_##name)

/* Whether the function should give up because its deadline has passed. One load: cheap enough to be
 * asked every few microseconds. */
static inline int hotlease_cancelled(const hotlease_context* context)
{
    return *context->cancelled != 0;
}

/* Ends a function of the context interface with an error of its own:
 * `return hotlease_fail(EINVAL, "no input", out, capacity, produced);`
 * `code` must not be 0. A message longer than the capacity is cut. */
static inline int32_t hotlease_fail(int32_t code, const char* message, void* out, uint64_t capacity,
                                    uint64_t* produced)
{
    uint64_t length = strlen(message);
    if (length > capacity)
        length = capacity;
    if (length > 0)
        memcpy(out, message, (size_t)length);
    *produced = length;
    return code;
}

/* ---- How the macros above are made; not for use. -------------------------------------------------
 *
 * The marker is a constant that holds the version of the context interface. It must reach the dynamic
 * symbol table whatever the flags: default visibility beats -fvisibility=hidden; `used` (compiler) and
 * `retain` (linker, --gc-sections) keep what nothing refers to. g++ heeds visibility only on a first
 * declaration and both compilers heed the other two only on a definition: hence one of each. */
#if defined(__has_attribute)
#if __has_attribute(retain)
#define HOTLEASE_KEEP_ __attribute__((used, retain))
#endif
#endif
#ifndef HOTLEASE_KEEP_
#define HOTLEASE_KEEP_ __attribute__((used))
#endif

#ifdef __cplusplus
#define HOTLEASE_EXTERN_C_ extern "C"
#else
#define HOTLEASE_EXTERN_C_ extern
#endif

#define HOTLEASE_EXPORT_ HOTLEASE_EXTERN_C_ __attribute__((visibility("default")))
#define HOTLEASE_MARKER_(symbol)              \
    HOTLEASE_EXPORT_ const uint32_t symbol;   \
    HOTLEASE_KEEP_ const uint32_t symbol = 1

#ifdef __cplusplus
static_assert(sizeof(void*) == 8, "hotlease needs a 64-bit machine");
#else
_Static_assert(sizeof(void*) == 8, "hotlease needs a 64-bit machine");
#endif

#endif
