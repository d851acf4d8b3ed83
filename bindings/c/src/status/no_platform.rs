//! Empty type for errors of the client library and of gangs, in a library without the feature `platform`.

use super::Status;
use std::ffi::c_int;

/// Error of the parts that the feature `platform` adds; never made here.
pub(crate) enum PlatformError {}

impl PlatformError {
    pub(super) fn status(&self) -> Status {
        match *self {}
    }

    pub(super) fn message(&self) -> String {
        match *self {}
    }

    pub(super) fn ran(&self) -> c_int {
        match *self {}
    }

    pub(super) fn billed(&self) -> bool {
        match *self {}
    }

    pub(super) fn retryable(&self) -> bool {
        match *self {}
    }

    pub(super) fn code(&self) -> i32 {
        match *self {}
    }

    pub(super) fn needed(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn rank(&self) -> Option<u32> {
        match *self {}
    }
}
