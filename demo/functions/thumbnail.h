/* Input and output of the thumbnail demonstration's function; C and C++. */
#ifndef HOTLEASE_DEMO_THUMBNAIL_H
#define HOTLEASE_DEMO_THUMBNAIL_H

#include <stdint.h>

/* The input: this, directly followed by the bytes of a JPEG file. The output: the thumbnail, a JPEG. */
typedef struct thumbnail_request {
    uint32_t edge_px_max; /* longest side of the thumbnail, 1 to 4096; smaller images keep their size */
    uint32_t quality;     /* of the JPEG written, 1 to 100 */
} thumbnail_request;

/* The function's own error numbers. */
enum {
    THUMBNAIL_REQUEST = 1,   /* the request is cut short or a number in it is out of range */
    THUMBNAIL_IMAGE = 2,     /* no JPEG, a damaged one, or neither grey nor colour (CMYK) */
    THUMBNAIL_TOO_LARGE = 3, /* more than 256 million pixels */
    THUMBNAIL_CANCELLED = 4, /* the deadline passed */
    THUMBNAIL_NO_MEMORY = 5
};

#endif
