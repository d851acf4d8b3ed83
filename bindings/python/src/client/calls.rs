//! Calls of Python programs as requests: arguments, options, and native functions.

pub mod encode;
pub mod native;
pub mod options;
pub mod settled;
