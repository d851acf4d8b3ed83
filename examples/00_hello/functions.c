/* Two functions. They are compiled into libhello_functions.so, which no program links with: the client
 * sends the file's bytes to the worker, and the worker calls the functions. */

/* For getpid. */
#define _POSIX_C_SOURCE 200809L

#include <hotlease/function.h>

#include <stdio.h>
#include <unistd.h>

/* The plain interface: input, its size, and the place of the output; it returns the number of bytes written. It does
 * not pass the room for the output, so it suits results of known size. */
HOTLEASE_PLAIN_FUNCTION(add);

uint32_t add(const void* in, uint32_t size, void* out)
{
    const double* numbers = in;
    double sum = 0;
    for (uint32_t i = 0; i < size / sizeof *numbers; i++)
        sum += numbers[i];
    *(double*)out = sum;
    return sizeof sum;
}

/* The context interface: 64-bit sizes, the room for the output, errors, and a context with the
 * number of the slot, the tenant that pays, a deadline, and kept state. */
HOTLEASE_FUNCTION(greet);

int32_t greet(hotlease_context* context, const void* in, uint64_t size, void* out, uint64_t capacity,
              uint64_t* produced)
{
    if (size == 0 || size > 100)
        return hotlease_fail(1, "a name has 1 to 100 letters", out, capacity, produced);
    int length = snprintf(out, capacity, "hello, %.*s, from process %d for %s", (int)size, (const char*)in,
                          (int)getpid(), context->tenant);
    *produced = (uint64_t)length; /* larger than the capacity? Then the caller is told how much is needed. */
    return 0;
}
