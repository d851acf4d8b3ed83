//! L1: transports and registered memory.
