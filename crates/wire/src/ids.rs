//! Typed identifiers, so that the number of one object cannot be passed for another kind of object.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number_id!(
    /// Epoch of a slot's holder; rises with every grant and every replaced worker.
    Epoch(u32)
);
impl Epoch {
    /// Whether a slot of this epoch may serve a frame of the epoch `frame`.
    #[inline]
    pub fn admits(self, frame: Self) -> bool {
        frame == self
    }
}

number_id!(
    /// Index of a worker within its lease.
    WorkerIndex(u16)
);
number_id!(
    /// Index of a slot within its worker.
    SlotIndex(u16)
);
number_id!(
    /// Index of a function loaded into a worker: the position of its name in the library's sorted exports, plus the
    /// base that the worker assigned to the library.
    FunctionIndex(u16)
);
number_id!(
    /// Number of a registered buffer, assigned by the client that registered it; unique within a connection.
    RegionId(u32)
);
number_id!(
    /// Number that a batch system gives a job.
    JobId(u64)
);

macro_rules! bytes_id {
    ($(#[$doc:meta])* $name:ident($len:expr)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub [u8; $len]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&hex::encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = crate::DecodeError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let mut bytes = [0; $len];
                let decoded = hex::decode_to_slice(text, &mut bytes);
                decoded.map_err(|_| crate::DecodeError::Malformed { what: stringify!($name) })?;
                Ok(Self(bytes))
            }
        }
    };
}

bytes_id!(
    /// Id of a lease; random, so that two agents never assign the same id.
    LeaseId(8)
);
bytes_id!(
    /// Id of an agent; stable over its restarts if it has a state directory.
    AgentId(8)
);
bytes_id!(
    /// Id of one run of an agent.
    BootId(8)
);
bytes_id!(
    /// BLAKE3 hash of a function library's bytes: its address.
    CodeHash(32)
);

impl CodeHash {
    /// Hash of these bytes.
    pub fn of(code: &[u8]) -> Self {
        Self(*blake3::hash(code).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips_and_refuses_anything_else() {
        let id = LeaseId([0, 1, 2, 0xab, 0xff, 9, 8, 7]);
        assert_eq!(id.to_string(), "000102abff090807");
        assert_eq!(id.to_string().parse::<LeaseId>().unwrap(), id);
        for bad in ["", "00", "000102abff09080g", "000102abff0908077", "é00102abff09080"] {
            assert!(bad.parse::<LeaseId>().is_err(), "{bad:?} is no lease id");
        }
    }
}
