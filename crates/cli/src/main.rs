//! L4: the one `hotlease` binary.

fn main() {}
