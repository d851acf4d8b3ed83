//! Black-box tests of the built binaries.
