/* Input and output of the Black-Scholes demonstration's functions; C and C++. */
#ifndef HOTLEASE_DEMO_BLACK_SCHOLES_H
#define HOTLEASE_DEMO_BLACK_SCHOLES_H

#include <stdint.h>

/* One European option, with the parameters of the PARSEC benchmark: 24 bytes, so that 10 million are
 * 229 MiB. The result is one float for each, its price: 38 MiB. */
typedef struct black_scholes_option {
    float spot;       /* price of the underlying now */
    float strike;     /* price at which it may be bought or sold */
    float rate;       /* riskless interest, per year */
    float volatility; /* of the underlying, per year */
    float years;      /* until the option expires */
    uint32_t kind;    /* BLACK_SCHOLES_CALL or BLACK_SCHOLES_PUT; any other value makes the price NaN */
} black_scholes_option;

enum { BLACK_SCHOLES_CALL = 0, BLACK_SCHOLES_PUT = 1 };

/* The function's own error numbers. */
enum {
    BLACK_SCHOLES_SIZE = 1,     /* the input is not a whole number of options */
    BLACK_SCHOLES_CANCELLED = 2 /* the deadline passed */
};

#endif
