//! The C ABI of the client library and of message passing. The contract of each function is in
//! `include/hotlease/hotlease.h`, `communicator.h` and `gang.h`.
//!
//! * [`status`] — kinds of failure, and the error object; it converts every panic and every `Result`.
//! * [`argument`] — checks and conversions of arguments from C callers.
//! * [`code`], [`invoker`], [`function`], [`invocation`], [`buffer`], [`pipeline`], [`model`] — one handle each; [`map`],
//!   [`mixed`], [`parts`] — further ways to call.
//! * [`comm`] — message passing; [`gang`] — functions that run at the same time, and their communicator.
//!
//! Every handle is a `Box` given to the caller as a raw pointer and taken back by its `_free` function. The caller's
//! part of each `unsafe` contract is the same, and is stated at the top of the header: pointers are NULL or valid, and
//! nothing is freed while it is in use.

#![allow(clippy::missing_safety_doc)] // The headers state the safety contract; see above.

mod argument;
mod buffer;
mod code;
mod comm;
mod function;
mod gang;
mod invocation;
mod invoker;
mod map;
mod mixed_calls;
mod model;
mod parts;
mod pipeline;
mod status;

use std::ffi::c_char;

/// Version of this library.
#[unsafe(no_mangle)]
pub extern "C" fn hotlease_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
