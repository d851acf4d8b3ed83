/* Two functions. They are compiled into libhello_functions.so. No program links with this library: the client
 * sends the file's bytes to the worker, and the worker calls the functions. */

/* For getpid. */
#define _POSIX_C_SOURCE 200809L

#include <hotlease/function.h>

#include <stdio.h>
#include <unistd.h>

/* The plain interface: a function gets the input, the input's size, and the place of the output; it returns the number
 * of bytes written. It does not get the capacity of the output, so this interface suits results of known size. */
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

/* The context interface: 64-bit sizes, the capacity of the output, errors, and a context with the
 * number of the slot, the tenant that pays, a deadline, and state that is kept between calls. */
HOTLEASE_FUNCTION(greet);

int32_t greet(hotlease_context* context, const void* in, uint64_t size, void* out, uint64_t capacity,
              uint64_t* produced)
{
    if (size == 0 || size > 100)
        return hotlease_fail(1, "a name has 1 to 100 letters", out, capacity, produced);
    int length = snprintf(out, capacity, "hello, %.*s, from process %d for %s", (int)size, (const char*)in,
                          (int)getpid(), context->tenant);
    *produced = (uint64_t)length; /* if it exceeds the capacity, the caller gets an error with the needed size */
    return 0;
}
