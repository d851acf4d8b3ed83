//! L2: the process that runs functions.

fn main() {}
