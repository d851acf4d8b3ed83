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
 * What functions leave behind in a worker can outlive it: see HOTLEASE_STATE_SAVE.
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

/* ---- State that outlives a worker -------------------------------------------------------------------
 *
 * A lease with a state (`state` of hotlease_options, docs/swapping.md) has one worker with one slot. What its
 * functions leave behind there is saved when the worker ends, and restored in the worker of the next lease of
 * that tenant and name, on any node. The library says how, once, in two functions of one name:
 *
 *     static double model[1 << 20];
 *
 *     HOTLEASE_STATE_SAVE(model_1)
 *     {
 *         return hotlease_state_write(state, model, sizeof model);
 *     }
 *
 *     HOTLEASE_STATE_RESTORE(model_1)
 *     {
 *         return hotlease_state_read(state, model, sizeof model);
 *     }
 *
 * The name, here model_1, is that of the format in which the bytes are. A library restores what any library has
 * saved under its name; so a library that was rebuilt, or changed, finds the state of the old one, and one that
 * cannot read it takes another name (model_2), and is refused what is there.
 *
 *  1. Both run on the slot's thread, between two invocations and never during one: RESTORE before the first one,
 *     if something was saved, and SAVE when none follows. `context` is that of the slot's functions, without a
 *     deadline: `*context->state` is where they left it.
 *  2. The bytes go through hotlease_state_write() and hotlease_state_read(), in as many calls as is convenient,
 *     each with as many bytes as it likes: small ones are gathered. Memory is the library's own, and is used
 *     during the call only; large pieces are not copied, so that no state has to be in memory twice.
 *  3. RESTORE reads all that there is, `state->size` bytes. It may be of another machine of this processor
 *     architecture: no pointers, file descriptors or thread numbers.
 *  4. Both return 0, or what the failed call has returned, or their own error: `return hotlease_state_fail(state,
 *     EINVAL, "not a model");`. After a failure no call does anything any more, and the whole fails whatever is
 *     returned.
 *  5. SAVE has the time and the room that the agent's operator gives (2 s and 1 GiB unless said otherwise). If it
 *     returns an error, the worker serves on as long as its lease does; afterwards the state is lost. RESTORE has
 *     5 s, or the time for SAVE if that is longer. If it fails, there is no lease, nothing ran, and the state is
 *     kept as it was saved.
 *  6. A crash, an exception or exit() ends the worker, and so does taking too long: what SAVE was to save is lost,
 *     and RESTORE has failed. */
typedef struct hotlease_state {
    /* sizeof(hotlease_state) of the worker; later versions add fields at the end. */
    uint32_t struct_size;
    uint32_t reserved;
    /* Bytes to restore, in all; 0 when the state is saved. */
    uint64_t size;
    /* Not for use: see the functions below. */
    int32_t (*read)(struct hotlease_state* state, void* to, uint64_t size);
    int32_t (*write)(struct hotlease_state* state, const void* from, uint64_t size);
    int32_t (*fail)(struct hotlease_state* state, int32_t code, const char* message);
} hotlease_state;

/* Declares the function that saves the state, and exports it; once in each library. It is not one to be invoked. */
#define HOTLEASE_STATE_SAVE(name) HOTLEASE_STATE_(hotlease_state_save_##name)
/* Declares the function that restores it; of the same name. */
#define HOTLEASE_STATE_RESTORE(name) HOTLEASE_STATE_(hotlease_state_restore_##name)

/* In SAVE: `size` further bytes of the state. Returns 0, or a number that SAVE is to return. */
static inline int32_t hotlease_state_write(hotlease_state* state, const void* from, uint64_t size)
{
    return state->write(state, from, size);
}

/* In RESTORE: the next `size` bytes, all of them. Returns 0, or a number that RESTORE is to return. */
static inline int32_t hotlease_state_read(hotlease_state* state, void* to, uint64_t size)
{
    return state->read(state, to, size);
}

/* Says why it fails, in up to 1024 bytes of UTF-8; returns `code`, which must not be 0. */
static inline int32_t hotlease_state_fail(hotlease_state* state, int32_t code, const char* message)
{
    return state->fail(state, code, message);
}

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
/* Few look into their context: no warning. */
#define HOTLEASE_STATE_(function)                                                          \
    HOTLEASE_EXPORT_ int32_t function(hotlease_context* context, hotlease_state* state);   \
    HOTLEASE_EXTERN_C_ int32_t function(__attribute__((unused)) hotlease_context* context, \
                                        hotlease_state* state)
#define HOTLEASE_MARKER_(symbol)              \
    HOTLEASE_EXPORT_ const uint32_t symbol;   \
    HOTLEASE_KEEP_ const uint32_t symbol = 1

#ifdef __cplusplus
static_assert(sizeof(void*) == 8, "hotlease needs a 64-bit machine");
#else
_Static_assert(sizeof(void*) == 8, "hotlease needs a 64-bit machine");
#endif

#endif
