/*
 * hotlease/function.h: for authors of functions. C11 and C++; nothing to link with.
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
 * State that functions leave in a worker can outlive it: see HOTLEASE_STATE_SAVE.
 * The body may also follow HOTLEASE_PLAIN_FUNCTION or HOTLEASE_FUNCTION directly (`HOTLEASE_FUNCTION(name) { ... }`);
 * the parameters then have the names used below.
 *
 * Rules for both interfaces:
 *  1. A function runs on one slot, one thread pinned to its own core. Several slots of a worker may run the same
 *     function at once: global data must be thread-safe. On shared cores the next call may be on another core.
 *  2. `in` may be read and `out` written during the call only. `in` and `out` are not NULL, unless their size is 0.
 *     They overlap only if the caller named the same buffer for both. They start at a multiple of 64 bytes, unless the
 *     caller chose another offset in its buffer.
 *  3. Writing past the capacity of `out` is an error of the function, and ends the worker.
 *  4. A C++ exception or longjmp must not leave the function.
 *  5. A crash or exit() ends the worker, and the caller is told so. Other workers are not affected.
 *  6. Standard output and error of a worker are kept only for the message about its death.
 */
#ifndef HOTLEASE_FUNCTION_H
#define HOTLEASE_FUNCTION_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Context that the worker passes to a function of the context interface. Valid during the call only, except `*state`,
 * which belongs to the function library. */
typedef struct hotlease_context {
    /* sizeof(hotlease_context) of the worker. Later versions add fields at the end only: test this size before you use
     * a field that this version of the header does not have. */
    uint32_t struct_size;
    /* Number of this slot, from 0, and number of slots of the worker. */
    uint32_t slot;
    uint32_t slots;
    uint32_t reserved;
    /* Tenant that pays for the lease, for instance "uid:1000". */
    const char* tenant;
    /* Deadline of the function: nanoseconds of CLOCK_MONOTONIC, 0 if there is none. */
    uint64_t deadline_ns;
    /* Becomes nonzero when the deadline has passed: return soon, with any value. If the function does not return, it is
     * killed with its worker 50 ms later. See hotlease_cancelled(). */
    const volatile uint32_t* cancelled;
    /* Pointer of this slot, NULL at first: for a connection, a model, a cache. It is kept between the calls of this
     * worker, and all functions of the lease share it. The worker does not free the memory behind it: when the worker
     * ends, all its memory is released at once. */
    void** state;
    /* Working memory of the slot: 64-byte aligned, contents undefined at entry. */
    void* scratch;
    uint64_t scratch_bytes;
    /* Used by hotlease_context_communicator (gang.h) to make the communicator of a gang's functions; NULL if this
     * function does not run on a gang. */
    void* communicator;
} hotlease_context;

/* The plain interface, which the rFaaS papers define: returns the number of bytes written to `out`. */
typedef uint32_t (*hotlease_plain_function)(const void* in, uint32_t size, void* out);

/* The context interface: 64-bit sizes, the capacity of `out`, and a context.
 *
 * Returns 0 for success; `*produced` (0 at entry) is then the number of bytes written. Any other value is the
 * function's own error number. The caller gets it together with the bytes written to `out`, by convention a message in
 * UTF-8. If a result does not fit, the function sets `*produced` to the size of the result, writes nothing, and returns
 * 0: the caller gets an error with this size. */
typedef int32_t (*hotlease_context_function)(hotlease_context* context, const void* in, uint64_t size,
                                             void* out, uint64_t capacity, uint64_t* produced);

/* Declares a function of the plain interface and exports it. */
#define HOTLEASE_PLAIN_FUNCTION(name)                                            \
    HOTLEASE_EXPORT_ uint32_t name(const void* in, uint32_t size, void* out);    \
    HOTLEASE_EXTERN_C_ uint32_t name(const void* in, uint32_t size, void* out)

/* Declares a function of the context interface and exports it. Use it once for each function in a library: it makes a
 * data symbol, by which client and worker recognise the function's interface. */
#define HOTLEASE_FUNCTION(name)                                                                          \
    HOTLEASE_MARKER_(hotlease_context_##name);                                                           \
    HOTLEASE_EXPORT_ int32_t name(hotlease_context* context, const void* in, uint64_t size, void* out,   \
                                  uint64_t capacity, uint64_t* produced);                                \
    HOTLEASE_EXTERN_C_ int32_t name(hotlease_context* context, const void* in, uint64_t size, void* out, \
                                    uint64_t capacity, uint64_t* produced)

/* Declares that running the function a second time does no harm. Only with this declaration does the client library run
 * an invocation again by itself if the worker died during it. Used in addition to one of the declarations above. */
#define HOTLEASE_IDEMPOTENT(name) HOTLEASE_MARKER_(hotlease_idempotent_##name)

/* ---- State that outlives a worker -------------------------------------------------------------------
 *
 * A lease with a state (`state` of hotlease_options, docs/swapping.md) has one worker with one slot. The state that
 * functions leave in this worker is saved when the worker ends. It is restored in the worker of the tenant's next lease
 * with this state name, on any node. The library declares how, once, in two functions with the same name:
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
 * The name, here model_1, is the name of the format of the bytes. A library restores a state that any library saved
 * under this name; so a library that was rebuilt or changed finds the state that its old version saved. A library that
 * cannot read the old format uses another name (model_2), and does not get the old state.
 *
 *  1. Both functions run on the slot's thread, never during an invocation: RESTORE before the first invocation, if a
 *     state was saved, and SAVE after the last invocation. `context` is the context of the slot's functions, without a
 *     deadline; `*context->state` is as these functions left it.
 *  2. The bytes are passed to hotlease_state_write() and from hotlease_state_read(), in any number of calls, each with
 *     any number of bytes: small pieces are gathered. The memory is the library's own, and is used during the call
 *     only. Large pieces are not copied, so that no state has to be in memory twice.
 *  3. RESTORE reads all of the `state->size` bytes. They may come from another node of the same processor architecture,
 *     so they must not contain pointers, file descriptors or thread numbers.
 *  4. Both functions return 0, or the result of the failed call, or their own error: `return hotlease_state_fail(state,
 *     EINVAL, "not a model");`. After a failed call, further calls have no effect, and saving or restoring fails with
 *     any return value.
 *  5. Time and size of SAVE are limited by the agent's operator (default: 2 s and 1 GiB). If SAVE returns an error, the
 *     worker continues to serve until its lease ends, and then the state is lost. RESTORE has 5 s, or the time for SAVE
 *     if that is longer. If RESTORE fails, there is no lease, no function ran, and the saved state is kept.
 *  6. A crash, an exception, exit() or a timeout ends the worker. If this happens in SAVE, the state is lost; if it
 *     happens in RESTORE, RESTORE has failed. */
typedef struct hotlease_state {
    /* sizeof(hotlease_state) of the worker; later versions add fields at the end. */
    uint32_t struct_size;
    uint32_t reserved;
    /* Total number of bytes to restore; 0 in SAVE. */
    uint64_t size;
    /* Do not call these: use the functions below. */
    int32_t (*read)(struct hotlease_state* state, void* to, uint64_t size);
    int32_t (*write)(struct hotlease_state* state, const void* from, uint64_t size);
    int32_t (*fail)(struct hotlease_state* state, int32_t code, const char* message);
} hotlease_state;

/* Declares the function that saves the state, and exports it; once in each library. Clients cannot invoke it. */
#define HOTLEASE_STATE_SAVE(name) HOTLEASE_STATE_(hotlease_state_save_##name)
/* Declares the function that restores the state, under the same name. */
#define HOTLEASE_STATE_RESTORE(name) HOTLEASE_STATE_(hotlease_state_restore_##name)

/* In SAVE: writes the next `size` bytes of the state. Returns 0, or an error number that SAVE has to return. */
static inline int32_t hotlease_state_write(hotlease_state* state, const void* from, uint64_t size)
{
    return state->write(state, from, size);
}

/* In RESTORE: reads exactly the next `size` bytes. Returns 0, or an error number that RESTORE has to return. */
static inline int32_t hotlease_state_read(hotlease_state* state, void* to, uint64_t size)
{
    return state->read(state, to, size);
}

/* Reports why SAVE or RESTORE fails, in up to 1024 bytes of UTF-8; returns `code`, which must not be 0. */
static inline int32_t hotlease_state_fail(hotlease_state* state, int32_t code, const char* message)
{
    return state->fail(state, code, message);
}

/* Whether the function should give up because its deadline has passed. It is a single load, so a function may call it
 * every few microseconds. */
static inline int hotlease_cancelled(const hotlease_context* context)
{
    return *context->cancelled != 0;
}

/* Ends a function of the context interface with the function's own error:
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

/* ---- Implementation of the macros above; not for use. --------------------------------------------
 *
 * The marker is a constant: the version of the context interface. It must be in the dynamic symbol table, with any
 * flags. Default visibility overrides -fvisibility=hidden; `used` (for the compiler) and `retain` (for the linker's
 * --gc-sections) keep an unreferenced symbol. g++ applies visibility only on a first declaration, and both compilers
 * apply `used` and `retain` only on a definition: hence a declaration and a definition. */
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
/* `unused` prevents a warning, because few of these functions need their context. */
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
