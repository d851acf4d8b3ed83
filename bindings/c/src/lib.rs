//! The C ABI of the client library and of message passing: `include/hotlease/hotlease.h`, `communicator.h` and `gang.h` say what each
//! function promises.
//!
//! * [`status`] — kinds of failure, and the error object; no panic and no `Result` gets past it.
//! * [`argument`] — what a C caller passed, checked for what can be checked.
//! * [`code`], [`invoker`], [`function`], [`invocation`], [`buffer`], [`pipeline`], [`model`] — one handle each; [`map`],
//!   [`mixed`], [`parts`] — further ways to call.
//! * [`comm`] — message passing; [`gang`] — functions that run at the same time, and their communicator.
//!
//! Every handle is a `Box` given to the caller as a raw pointer and taken back by its `_free` function. The
//! caller's part of each `unsafe` contract is the same and stands at the top of the header: pointers are
//! NULL or valid, and nothing is freed while it is in use.

#![allow(clippy::missing_safety_doc)] // It is the header's; see above.

mod argument;
mod buffer;
mod code;
mod comm;
mod function;
mod gang;
mod invocation;
mod invoker;
mod map;
mod mixed;
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
